"""Attention of the `shared` layout: prompts and completions lie one after the other in a single row; a prompt's tokens
attend to it alone, a completion's to its prompt and to itself. So a prompt goes through the model once for all
completions of its group.

A completion's attention is two pieces, over the prompt's keys (all of them) and over its own (causal), put together by
their log-sum-exp. On the CPU both are PyTorch's flash kernel and no key is copied; the gradient of the pieces is that
kernel's too, given the output and log-sum-exp of the whole (Liu et al. 2023, "Ring Attention with Blockwise
Transformers", where pieces lie on several devices). Elsewhere completions of a group are padded to the longest, and the
prompt's keys come before each one's own. The indices for that are made once for a forward pass, so that a layer starts
a few kernels for each group, whatever the number of its completions.

Shapes: H heads · K heads of keys and values · R heads that share one of them · T positions of the row · E size of a
head · C completions of a group that have tokens · L tokens of the longest of them · S positions of a piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grpo_core.errors import ModelError


@dataclass(frozen=True)
class Share:
    """One prompt and its completions, as they lie in the row: the prompt first, then each completion's fed tokens."""

    start: int
    prompt: int
    """How many tokens the prompt has."""
    completions: tuple[int, ...]
    """How many tokens each has; 0 for one of which nothing is fed."""

    @property
    def inside(self) -> slice:
        """Where the prompt lies."""
        return slice(self.start, self.start + self.prompt)

    @property
    def after(self) -> slice:
        """Where the completions lie."""
        return slice(self.start + self.prompt, self.start + self.prompt + sum(self.completions))

    @property
    def longest(self) -> int:
        """Tokens of the longest completion."""
        return max(self.completions, default=0)

    def own(self) -> Iterator[slice]:
        """Where each completion lies that has tokens."""
        start = self.start + self.prompt
        for size in self.completions:
            if size:
                yield slice(start, start + size)
            start += size


@dataclass(frozen=True)
class _Padding:
    """Where the tokens of a row are once the completions of each group are padded."""

    padded: Tensor
    """The row's index of each token of the padded completions, group after group (C·L each); padding repeats the last
    token of its completion."""
    row_T: Tensor
    """The index of each of the row's tokens among all prompts' tokens, then the padded completions'."""
    masks: tuple[Tensor | None, ...]
    """For each share, added to the scores: 1×1×(M·L)×(prompt + L), where M is R, or 1 where keys are better repeated
    for each head; None without completions."""

    @staticmethod
    def of(shares: Sequence[Share], query_BHTE: Tensor, key_BKTE: Tensor) -> "_Padding":
        """For queries and keys of these shapes, this type and device."""
        padded: list[Tensor] = []
        masks: list[Tensor | None] = []
        row_T = torch.empty(query_BHTE.shape[2], dtype=torch.long)
        before, after = 0, sum(share.prompt for share in shares)
        for share in shares:
            row_T[share.inside] = torch.arange(before, before + share.prompt)
            before += share.prompt
            own, longest = list(share.own()), share.longest
            for here in own:
                size = here.stop - here.start
                row_T[here] = torch.arange(after, after + size)
                padded.append(here.start + torch.arange(longest).clamp(max=size - 1))
                after += longest
            masks.append(_mask(share.prompt, longest, len(own), query_BHTE, key_BKTE) if own else None)
        rows = torch.cat([torch.empty(0, dtype=torch.long), *padded])
        return _Padding(rows.to(query_BHTE.device), row_T.to(query_BHTE.device), tuple(masks))


def _mask(prompt: int, longest: int, count: int, query_BHTE: Tensor, key_BKTE: Tensor) -> Tensor:
    """Of `count` completions that see their prompt and what they have themselves so far. Repeated for the heads that
    share a key, unless it were larger than the keys and values of one layer repeated in its place. Its rows lie a
    multiple of 8 apart, as the fused kernels need it, or they would copy it in each layer."""
    _, heads, _, size = key_BKTE.shape
    many = query_BHTE.shape[1] // heads if longest <= 2 * count * heads * size else 1
    width = -(-(prompt + longest) // 8) * 8
    hidden = torch.ones(longest, width, dtype=torch.bool, device=query_BHTE.device).triu(prompt + 1)
    mask = torch.zeros(hidden.shape, dtype=query_BHTE.dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return mask.repeat(many, 1)[None, None, :, : prompt + longest]


class Sharing:
    """What `attending` calls in every layer of a forward pass over such a row."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = tuple(shares)
        self._paddings: dict[object, _Padding] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """As transformers calls attention. Raises ModelError for a layer that attends in another way."""
        own = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias", "dropout") if kwargs.get(name)]
        if own or kwargs.get("is_causal") is False or key.shape[2] != query.shape[2]:
            raise ModelError(f"{type(module).__name__} attends with {', '.join(own) or 'keys of its own'}")
        kind = query.device.type
        if torch.is_autocast_enabled(kind):  # families rotate queries and keys in fp32 and leave values as they are
            query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        ours = kind == "cpu" and query.shape[-1] == value.shape[-1]
        return (self._pieces if ours else self._padded)(query, key, value, scale), None

    def _pieces(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """By PyTorch's flash kernel for CPUs."""
        output_BTHE: Tensor = _Pieces.apply(query, key, value, self._shares, scale)  # type: ignore[no-untyped-call]
        return output_BTHE

    def _padded(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """By PyTorch's attention: a call for each prompt and one for its completions."""
        kind = query.shape, key.shape, query.device, query.dtype
        if kind not in self._paddings:
            self._paddings[kind] = _Padding.of(self._shares, query, key)
        return _padded(query, key, value, self._shares, self._paddings[kind], scale)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_BHTE: Tensor, key_BKTE: Tensor, value_BKTE: Tensor, shares: tuple[Share, ...], scale: float
    ) -> Tensor:
        query, key, value = _grouped(query_BHTE, key_BKTE, value_BKTE)
        batch, heads, length, size = query_BHTE.shape
        output_BTHE = torch.empty((batch, length, heads, size), dtype=query.dtype, device=query.device)
        output = _by_keys(output_BTHE.transpose(1, 2), key_BKTE.shape[1])
        total = torch.empty(output.shape[:-1], dtype=torch.float32, device=query.device)
        for share in shares:
            for here in (share.inside, *share.own()):
                output[:, :, here], total[:, :, here] = _flash(query, key, value, here, here, scale, causal=True)
            if share.after.start < share.after.stop:
                _join(query, key, value, share, output, total, scale)
        ctx.save_for_backward(query_BHTE, key_BKTE, value_BKTE, output_BTHE, total)
        ctx.shares, ctx.scale = shares, scale
        return output_BTHE

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BTHE: Tensor) -> tuple[Tensor | None, ...]:
        query_BHTE, key_BKTE, value_BKTE, output_BTHE, total = ctx.saved_tensors
        query, key, value = _grouped(query_BHTE, key_BKTE, value_BKTE)
        heads = key_BKTE.shape[1]
        output, grad = (_by_keys(t.transpose(1, 2), heads) for t in (output_BTHE, grad_BTHE))
        to_query_BHTE = torch.empty_like(query_BHTE)
        to_query = _by_keys(to_query_BHTE, heads)
        to_key, to_value = (torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in (key_BKTE, value_BKTE))

        def slopes(queries: slice, keys: slice, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            gradients: tuple[Tensor, Tensor, Tensor] = (
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad[:, :, queries],
                    query[:, :, queries],
                    key[:, :, keys],
                    value[:, :, keys],
                    output[:, :, queries],
                    total[:, :, queries],
                    0.0,
                    causal,
                    scale=ctx.scale,
                )
            )
            return gradients

        for share in ctx.shares:
            for here in (share.inside, *share.own()):
                of_query, of_key, of_value = slopes(here, here, True)
                to_query[:, :, here] = of_query
                to_key[:, here], to_value[:, here] = of_key.sum(1), of_value.sum(1)
            if share.after.start < share.after.stop:
                of_query, of_key, of_value = slopes(share.after, share.inside, False)
                to_query[:, :, share.after] += of_query
                to_key[:, share.inside] += of_key.sum(1)
                to_value[:, share.inside] += of_value.sum(1)
        return to_query_BHTE, to_key[None], to_value[None], None, None


def _grouped(query_BHTE: Tensor, key_BKTE: Tensor, value_BKTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As K × (heads that share keys) × T × E; keys and values are repeated along the second without a copy."""
    heads = key_BKTE.shape[1]
    query = _by_keys(query_BHTE, heads)
    many = query.shape[1]
    return query, key_BKTE[0][:, None].expand(-1, many, -1, -1), value_BKTE[0][:, None].expand(-1, many, -1, -1)


def _by_keys(tensor_BHTE: Tensor, heads: int) -> Tensor:
    """A view of the one row's heads, those together that share keys."""
    row_HTE = tensor_BHTE[0]
    return row_HTE.view(heads, len(row_HTE) // heads, *row_HTE.shape[1:])


def _flash(
    query: Tensor, key: Tensor, value: Tensor, queries: slice, keys: slice, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention of `queries` over `keys` alone, and the log-sum-exp of its scores."""
    attended: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query[:, :, queries], key[:, :, keys], value[:, :, keys], 0.0, causal, scale=scale
    )
    return attended


def _join(query: Tensor, key: Tensor, value: Tensor, share: Share, output: Tensor, total: Tensor, scale: float) -> None:
    """Add the prompt's part to the completions' attention over their own tokens."""
    of_prompt, sums = _flash(query, key, value, share.after, share.inside, scale, causal=False)
    own, own_sums = output[:, :, share.after], total[:, :, share.after]
    together = torch.logaddexp(own_sums, sums)
    own *= (own_sums - together).exp()[..., None]
    own += of_prompt * (sums - together).exp()[..., None]
    own_sums.copy_(together)


def _padded(
    query_BHTE: Tensor, key_BKTE: Tensor, value_BKTE: Tensor, shares: Sequence[Share], padding: _Padding, scale: float
) -> Tensor:
    """B×T×H×E. The queries of all heads that share a key are laid one after the other where the mask is made for that,
    so that no key is repeated for them: fused kernels with a mask do not take grouped heads."""
    tensors = query_BHTE, key_BKTE, value_BKTE
    own_query, own_key, own_value = (tensor[0].index_select(1, padding.padded) for tensor in tensors)
    prompts, completions, start = [], [], 0
    for share, mask in zip(shares, padding.masks, strict=True):
        query, key, value = (tensor[:, :, share.inside] for tensor in tensors)
        prompts.append(_causal(query, key, value, scale)[0].transpose(0, 1))
        if mask is None:
            continue
        count, longest = sum(map(bool, share.completions)), share.longest  # C, L
        group = slice(start, start + count * longest)
        start = group.stop

        def padded(own: Tensor, group: slice = group, count: int = count) -> Tensor:  # …×(C·L)×E → C×…×L×E
            return own[:, group].reshape(len(own), count, -1, own.shape[2]).transpose(0, 1)

        query = padded(own_query).reshape(count, -1, mask.shape[2], query.shape[3])
        repeated = query.shape[1] // key.shape[1]
        key, value = (
            torch.cat([prompt.expand(count, -1, -1, -1), padded(own)], 2)
            .unsqueeze(2)
            .expand(-1, -1, repeated, -1, -1)
            .flatten(1, 2)
            for prompt, own in ((key, own_key), (value, own_value))
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        attended = attended.view(count, query.shape[1], -1, longest, value.shape[3])  # heads in two dimensions
        completions.append(attended.permute(0, 3, 1, 2, 4).reshape(count * longest, -1, value.shape[3]))
    return torch.cat([*prompts, *completions]).index_select(0, padding.row_T)[None]


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Of a prompt over itself. Fused kernels take grouped heads in half precision only."""
    many = query.shape[1] // key.shape[1]
    if query.dtype == torch.float32:
        key, value, many = key.repeat_interleave(many, 1), value.repeat_interleave(many, 1), 1
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=many > 1)
