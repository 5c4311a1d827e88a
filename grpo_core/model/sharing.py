"""Attention of the `shared` layout: prompts and completions lie one after the other in a single row; a prompt's tokens
attend to it alone, a completion's to its prompt and to itself. So a prompt goes through the model once for all
completions of its group.

A completion's attention is two pieces, over the prompt's keys (all of them) and over its own (causal), put together by
their log-sum-exp. On the CPU both are PyTorch's flash kernel and no key is copied; the gradient of the pieces is that
kernel's too, given the output and log-sum-exp of the whole (Liu et al. 2023, "Ring Attention with Blockwise
Transformers", where pieces lie on several devices). Elsewhere completions of a group are padded and the prompt's keys
come before each one's own.

Shapes: H heads · K heads of keys and values · T positions of the row · E size of a head · S positions of a piece.
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

    def own(self) -> Iterator[slice]:
        """Where each completion lies that has tokens."""
        start = self.start + self.prompt
        for size in self.completions:
            if size:
                yield slice(start, start + size)
            start += size


class Sharing:
    """What `attending` calls in every layer of a forward pass over such a row."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = tuple(shares)

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
        if kind == "cpu" and query.shape[-1] == value.shape[-1]:
            output_BTHE = _Pieces.apply(query, key, value, self._shares, scale)  # type: ignore[no-untyped-call]
        else:
            output_BTHE = _padded(query, key, value, self._shares, scale)
        return output_BTHE, None


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


def _padded(query: Tensor, key: Tensor, value: Tensor, shares: Sequence[Share], scale: float) -> Tensor:
    """The same by PyTorch's attention alone: one call for each prompt and one for its completions, padded."""
    many = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(many, 1), value.repeat_interleave(many, 1)
    parts = []
    for share in shares:
        inside = share.inside
        prompt = (query[:, :, inside], key[:, :, inside], value[:, :, inside])
        parts.append(F.scaled_dot_product_attention(*prompt, is_causal=True, scale=scale))
        own = list(share.own())
        if not own:
            continue
        longest = max(here.stop - here.start for here in own)

        def stacked(tensor: Tensor, own: list[slice] = own, longest: int = longest) -> Tensor:
            return torch.cat([F.pad(tensor[:, :, here], (0, 0, 0, longest - here.stop + here.start)) for here in own])

        keys, values = (
            torch.cat([tensor[:, :, inside].expand(len(own), -1, -1, -1), stacked(tensor)], 2)
            for tensor in (key, value)
        )
        sees = torch.ones(longest, share.prompt + longest, dtype=torch.bool, device=query.device).tril(share.prompt)
        attended = F.scaled_dot_product_attention(stacked(query), keys, values, attn_mask=sees, scale=scale)
        parts += [attended[row : row + 1, :, : here.stop - here.start] for row, here in enumerate(own)]
    return torch.cat(parts, 2).transpose(1, 2).contiguous()
