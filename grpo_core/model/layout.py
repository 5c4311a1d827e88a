"""How completions of unequal length share one forward pass: padded on the right, padded on the left, packed, or packed
with each prompt once for all of its completions.

The layout decides memory and speed and nothing else: the hidden state of every token is the same in all of them, within
rounding. Knows nothing of logits or losses.

Shapes: B rows of the batch as the model is fed it (one, when packed or shared) · T positions · N completion tokens of
the micro-batch, completion after completion · D hidden size.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from grpo_core.model.attention import attending
from grpo_core.model.sharing import Share, Sharing

Layout = Literal["right", "left", "packed", "shared"]
"""right: padding after each row. left: before it. packed: all rows in one, one after the other, without padding.
shared: the same, and rows of one prompt have it once, before their completions (see `sharing`)."""


def plan_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], budget: int, layout: Layout
) -> list[list[int]]:
    """Split rows into micro-batches of at most `budget` tokens as `layout` has them. Returns row numbers; the order
    depends on the arguments only."""
    if layout == "shared":
        return _plan_shared(prompts, completions, budget)
    return plan_micro_batches([len(p) + len(c) for p, c in zip(prompts, completions, strict=True)], budget, layout)


def _plan_shared(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], budget: int
) -> list[list[int]]:
    """Rows of one prompt stay together, and the prompt counts once. Where they do not fit into the budget they are
    cut, longest first, and the prompt counts in every part. Parts go, largest first, to the first micro-batch that has
    room."""
    parts: list[tuple[int, list[int]]] = []
    for prompt, rows in by_prompt(prompts).items():
        part: list[int] = []
        total = len(prompt)
        for row in sorted(rows, key=lambda row: (-len(completions[row]), row)):
            if part and total + len(completions[row]) > budget:
                parts.append((total, part))
                part, total = [], len(prompt)
            part.append(row)
            total += len(completions[row])
        parts.append((total, part))
    batches: list[list[int]] = []
    totals: list[int] = []
    for size, rows in sorted(parts, key=lambda part: (-part[0], part[1])):
        index = next((i for i, total in enumerate(totals) if total + size <= budget), len(batches))
        if index == len(batches):
            batches.append([])
            totals.append(0)
        batches[index] += rows
        totals[index] += size
    return batches


def by_prompt(prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """The rows of each prompt, in the order in which they come."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(tuple(prompt), []).append(row)
    return rows


def plan_micro_batches(lengths: Sequence[int], budget: int, layout: Layout = "right") -> list[list[int]]:
    """Split rows into micro-batches of at most `budget` tokens, padding included.

    Rows are taken longest first, so little is padded. Packed rows have no padding, so there each goes to the first
    micro-batch that still has room for it. A row longer than the budget goes alone. Returns row numbers; the order
    depends on the arguments only.
    """
    batches: list[list[int]] = []
    totals: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if layout == "packed":
            index = next((i for i, total in enumerate(totals) if total + lengths[row] <= budget), len(batches))
        else:
            full = not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > budget
            index = len(batches) - (not full)
        if index == len(batches):
            batches.append([])
            totals.append(0)
        batches[index].append(row)
        totals[index] += lengths[row]
    return batches


@dataclass(frozen=True)
class _Laid:
    """Rows ready for the model, and where in them the completions' tokens are predicted."""

    ids_BT: Tensor
    rows_N: Tensor
    indices_N: Tensor
    mask: Tensor | None
    positions_BT: Tensor | None
    shares: tuple[Share, ...] = ()


def completion_hidden(
    backbone: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    layout: Layout = "right",
    pad_id: int = 0,
) -> tuple[Tensor, Tensor]:
    """The hidden states that predict each completion token, shape N×D, and those tokens, shape N.

    `backbone` is a transformers model without its output layer (`model.base_model`). Each prompt needs at least one
    token. Differentiable when gradients are on.
    """
    device = next(backbone.parameters()).device
    laid = (
        _lay_out_shared(prompts, completions) if layout == "shared" else _lay_out(prompts, completions, layout, pad_id)
    )
    arguments = {
        name: tensor.to(device)
        for name, tensor in (("attention_mask", laid.mask), ("position_ids", laid.positions_BT))
        if tensor is not None
    }
    with attending(Sharing(laid.shares)) if laid.shares else nullcontext():
        hidden_BTD = backbone(input_ids=laid.ids_BT.to(device), use_cache=False, **arguments).last_hidden_state
    indices_N = (laid.rows_N * laid.ids_BT.shape[1] + laid.indices_N).to(device)
    hidden_ND: Tensor = hidden_BTD.flatten(0, 1).index_select(0, indices_N)
    return hidden_ND, torch.tensor([token for c in completions for token in c], device=device)


def _lay_out_shared(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> _Laid:
    ids, positions, shares = [], [], []
    predicted: list[Tensor] = [torch.empty(0)] * len(prompts)
    start = 0
    for prompt, rows in by_prompt(prompts).items():
        fed = [completions[row][:-1] for row in rows]  # what a row's last token predicts is not used
        share = Share(start, len(prompt), tuple(len(tokens) for tokens in fed))
        offset = share.after.start
        for row, tokens in zip(rows, fed, strict=True):
            own = torch.arange(offset, offset + len(tokens))
            # The first token of a completion is predicted where the prompt ends.
            predicted[row] = torch.cat([torch.tensor([share.inside.stop - 1]), own])[: len(completions[row])]
            offset += len(tokens)
        ids += [*prompt, *(token for tokens in fed for token in tokens)]
        positions += [torch.arange(len(prompt)), *(torch.arange(len(tokens)) + len(prompt) for tokens in fed)]
        shares.append(share)
        start = share.after.stop
    indices_N = torch.cat(predicted)
    # A finished mask is handed through as it is, and `Sharing` needs none: so transformers makes none of T×T either.
    none = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    return _Laid(
        torch.tensor([ids]), torch.zeros_like(indices_N), indices_N, none, torch.cat(positions)[None], tuple(shares)
    )


def _lay_out(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], layout: Layout, pad_id: int
) -> _Laid:
    # The last token of a row predicts nothing that is used, so it is not fed.
    fed = [torch.tensor([*p, *c[:-1]]) for p, c in zip(prompts, completions, strict=True)]
    lengths = torch.tensor([len(tokens_T) for tokens_T in fed])
    width = int(lengths.sum() if layout == "packed" else lengths.max())
    if layout == "packed":
        rows, starts = torch.zeros(len(fed), dtype=torch.long), lengths.cumsum(0) - lengths
    else:
        rows, starts = torch.arange(len(fed)), (width - lengths if layout == "left" else torch.zeros_like(lengths))

    ids_BT = torch.full((int(rows[-1]) + 1, width), pad_id, dtype=torch.long)
    positions_BT = torch.zeros_like(ids_BT)
    mask_BT = torch.zeros_like(ids_BT)
    for row, start, tokens_T in zip(rows.tolist(), starts.tolist(), fed, strict=True):
        here = slice(start, start + len(tokens_T))
        ids_BT[row, here] = tokens_T
        positions_BT[row, here] = torch.arange(len(tokens_T))
        mask_BT[row, here] = 1

    sizes = torch.tensor([len(c) for c in completions])
    first = starts + torch.tensor([len(p) - 1 for p in prompts])
    steps_N = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    indices_N = first.repeat_interleave(sizes) + steps_N

    # Padding on the right is where causal attention cannot see it: no mask is needed.
    mask, positions = None, None
    if layout == "packed":
        # Positions that start again, without a mask, are how transformers knows rows apart: it then makes the
        # block-diagonal mask itself, for each kind of layer. A finished four-dimensional mask would be taken for
        # layers with a sliding window too, and let them see the whole row.
        positions = positions_BT
    elif layout == "left" and int(lengths.min()) < width:
        mask, positions = mask_BT, positions_BT
    return _Laid(ids_BT, rows.repeat_interleave(sizes), indices_N, mask, positions)
