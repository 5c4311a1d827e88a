"""A key-value cache that holds each prompt once, for all completions that continue it.

A prompt's keys and values are held once; every running row adds only its own. Attention of a row's new token is
computed in two parts, over its prompt and over what the row wrote itself, and the parts are joined by their
log-sum-exps (as in flash decoding): exact, and neither the prompt nor grouped heads are ever repeated. For the prompt's
part the queries of all its rows are gathered in slots, so that its keys are read once a token whatever their number.

Rows and prompts that are no longer wanted are removed in place: the last ones move into the gaps. Needs a model whose
layers all use `model.attention` for plain attention over everything before (`shareable`).

A pass computes what there is. Once the cache is `fix`ed it computes what there was then, with tensors that keep their
shapes and addresses: rows and prompts that have ended since are computed too, and not read.

Shapes: P prompts · T their positions, padded on the right · B running rows · S tokens a row wrote · H key-value heads ·
R query heads that share one of them · C slots of a prompt, the most rows that one has · D size of a head.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from grpo_core.model.attention import attending, ours
from grpo_core.rollout.cache import compact_rows

FIRST_ROOM = 64
"""Tokens that a row has room for at first; doubled whenever it is full."""
_PLAIN = {"sliding_window", "softcap", "s_aux", "position_bias", "cache", "block_table"}
"""Arguments of the attention interface that must be absent or None: with one of them attention is another function."""


class SharedLayer(CacheLayerMixin):
    """One layer's keys and values."""

    is_sliding = False

    def __init__(self, owner: "SharedCache") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner: SharedCache = weakref.proxy(owner)  # or the buffers stayed until the garbage collector runs
        self.prompt_PHTD: tuple[Tensor, Tensor] | None = None
        self.own_BHSD: tuple[Tensor, Tensor] | None = None
        """Buffers with room for more rows and tokens than are held."""
        self.held = 0
        """Tokens that every running row has written."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store what is new and give it back. Prompts are filled in whole, rows continue by a token each."""
        self.is_initialized = True
        if self._owner.filling is not None:
            self._fill(self._owner.filling, key_states, value_states)
        else:
            self._append(key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Queries see only the keys that come with them, so far as transformers needs to know."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self) -> int:
        return -1

    def move(self, moved: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Rows and prompts move: two pairs of (from, to), first of rows, then of prompts."""
        for buffers, (source, target) in zip((self.own_BHSD, self.prompt_PHTD), moved, strict=True):
            if buffers is not None and len(source):
                for buffer in buffers:
                    buffer.index_copy_(0, target, buffer.index_select(0, source))

    def _fill(self, prompts: slice, key_PHTD: Tensor, value_PHTD: Tensor) -> None:
        if self.prompt_PHTD is None:
            heads, size = key_PHTD.shape[1], key_PHTD.shape[3]
            shape = (self._owner.prompts, heads, self._owner.width, size)
            self.prompt_PHTD = key_PHTD.new_zeros(shape), value_PHTD.new_zeros(shape)
        for buffer, new in zip(self.prompt_PHTD, (key_PHTD, value_PHTD), strict=True):
            buffer[prompts, :, : new.shape[2]] = new

    @property
    def room(self) -> int:
        """Tokens that a row has room for."""
        return 0 if self.own_BHSD is None else self.own_BHSD[0].shape[2]

    def widen(self, rows: int, first: int) -> None:
        """Room for at least one more token of this many rows; `first` is the least."""
        if self.held < self.room:
            return
        assert self.prompt_PHTD is not None
        room = min(self._owner.most, max(first, 2 * self.held))
        wider = []
        for number, prompt in enumerate(self.prompt_PHTD):
            # Zeros: what is behind a mask must be a number.
            buffer = prompt.new_zeros((rows, prompt.shape[1], room, prompt.shape[3]))
            if self.own_BHSD is not None:
                buffer[:, :, : self.held] = self.own_BHSD[number][:rows, :, : self.held]
            wider.append(buffer)
        self.own_BHSD = wider[0], wider[1]

    def _append(self, key_BH1D: Tensor, value_BH1D: Tensor) -> None:
        rows, fixed = len(key_BH1D), self._owner.fixed
        if fixed is None:
            self.widen(rows, FIRST_ROOM)
        assert self.own_BHSD is not None
        for buffer, new in zip(self.own_BHSD, (key_BH1D, value_BH1D), strict=True):
            if fixed is None:
                buffer[:rows, :, self.held] = new[:, :, 0]
            else:
                buffer[:rows].index_copy_(2, fixed.index_1, new)
        self.held += fixed is None


@dataclass(frozen=True)
class Fixed:
    """Where passes write and what they see once shapes are fixed, on the device."""

    index_1: Tensor
    """The tokens that every row holds: where the next one is written."""
    mask_S: Tensor
    """Added to the scores of what rows wrote: −∞ from behind the next token on; 1×1×1×S."""


@dataclass(frozen=True)
class _Shape:
    """What a pass computes."""

    rows: int
    prompts: int
    slots: int
    """Of each prompt."""
    longest: int
    """Positions of a prompt."""


class SharedCache(Cache):
    """Keys and values of some prompts and of the rows that continue them."""

    def __init__(
        self, layers: int, lengths: Sequence[int], *, most: int, kind: torch.dtype, device: torch.device
    ) -> None:
        """`lengths` of the prompts; at most `most` tokens are appended to each row. `kind` and `device` are those of
        the model's activations."""
        self._held = [SharedLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self._held])
        self.most = most
        self.prompts = len(lengths)
        self.width = max(lengths)
        self.filling: slice | None = None
        """The prompts of the current forward pass; None when it is of rows."""
        self._kind, self._device = kind, device
        self._lengths = torch.tensor(lengths)
        self._share_B = torch.empty(0, dtype=torch.long)
        self._mask: Tensor | None = None
        self.fixed: Fixed | None = None

    def share(self, share_B: Tensor) -> None:
        """From now on row b continues prompt `share_B[b]` (on the CPU), and nothing was appended yet."""
        self._share_B = share_B
        self._update_slots()

    def keep(self, keep_B: Tensor) -> None:
        """Row b is from now on what row `keep_B[b]` was. Those that stay keep their index (`compact_rows`)."""
        share_B = self._share_B[keep_B]
        used_P = torch.zeros(self.prompts, dtype=torch.bool)
        used_P[share_B] = True
        keep_P = compact_rows(used_P)
        here_B, here_P = torch.arange(len(keep_B)), torch.arange(len(keep_P))
        pairs = [
            (keep[keep != here].to(self._device), here[keep != here].to(self._device))
            for keep, here in ((keep_B, here_B), (keep_P, here_P))
        ]
        for layer in self._held:
            layer.move(pairs)
        index_P = torch.empty(self.prompts, dtype=torch.long)
        index_P[keep_P] = here_P
        self.prompts, self._lengths = len(keep_P), self._lengths[keep_P]
        self._share_B = index_P[share_B]
        self._update_slots()

    @property
    def full(self) -> bool:
        """Whether no token can be appended without wider buffers."""
        return self._held[0].held == self._held[0].room

    def fix(self, first: int) -> None:
        """Fix the shapes of passes at what there is now, and addresses, until it is called again. Rows have room for
        `first` tokens, or twice what they hold where that is full. `advance` counts a token appended; passes do not."""
        self.release()
        for layer in self._held:
            layer.widen(len(self._share_B), first)
            assert layer.own_BHSD is not None
            self._slots(layer.own_BHSD[0].shape[1])  # a pass copies nothing to the device
        held, room = self._held[0].held, self._held[0].room
        mask_S = torch.zeros((1, 1, 1, room), dtype=self._kind, device=self._device)
        mask_S[..., held + 1 :] = -torch.inf
        self.fixed = Fixed(torch.full((1,), held, device=self._device), mask_S)

    def release(self) -> None:
        """Passes are of what there is again."""
        self.fixed = None
        self._update_slots()

    def advance(self) -> None:
        """Every row has appended a token in a pass of fixed shape."""
        assert self.fixed is not None
        for layer in self._held:
            layer.held += 1
        self.fixed.index_1.add_(1)
        if not self.full:
            self.fixed.mask_S[..., self._held[0].held] = 0

    def bytes(self) -> int:
        """Of all buffers."""
        return sum(
            buffer.nbytes
            for layer in self._held
            for buffers in (layer.prompt_PHTD, layer.own_BHSD)
            for buffer in buffers or ()
        )

    def attend(
        self,
        module: nn.Module,
        query_BN1D: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """For `attending`, in passes of one token a row. The new keys are in the cache already."""
        return self.attend_at(module.layer_idx, query_BN1D, key.shape[1], scaling), None  # type: ignore[arg-type]

    def append(self, number: int, key: Tensor, value: Tensor) -> None:
        """Keys and values of every row's new token, in a layer by its number."""
        self._held[number].update(key, value)

    def attend_at(self, number: int, query_BN1D: Tensor, heads: int, scaling: float | None) -> Tensor:
        """The same for a layer by its number, with so many key-value heads: B×1×N×D."""
        layer = self._held[number]
        assert layer.prompt_PHTD is not None
        assert layer.own_BHSD is not None
        rows, _, _, size = query_BN1D.shape
        query_BHRD = query_BN1D.reshape(rows, heads, -1, size)
        shared = query_BHRD.shape[2]
        held, mask = (layer.held, None) if self.fixed is None else (layer.room, self.fixed.mask_S)
        keys, values = (buffer[:rows, :, :held] for buffer in layer.own_BHSD)
        own, own_lse = partial(query_BHRD, keys, values, mask, scaling)

        inward, outward = self._slots(heads)
        slots_PHCD = query_BHRD.reshape(rows * heads, shared * size).index_select(0, inward)
        slots_PHCD = slots_PHCD.view(self._shape.prompts, heads, -1, size)
        keys, values = (buffer[: self._shape.prompts, :, : self._shape.longest] for buffer in layer.prompt_PHTD)
        prompt, prompt_lse = partial(slots_PHCD, keys, values, self._mask, scaling)
        prompt = prompt.reshape(-1, shared, size).index_select(0, outward).view_as(own)
        prompt_lse = prompt_lse.reshape(-1, shared).index_select(0, outward).view_as(own_lse)
        weight_BHR1 = torch.sigmoid(prompt_lse - own_lse)[..., None].to(own.dtype)
        return torch.lerp(own, prompt, weight_BHR1).reshape(rows, 1, heads * shared, size)

    def _update_slots(self) -> None:
        """Which slot each row has now, and which positions of the prompts are padding."""
        share_B = self._share_B
        order = torch.argsort(share_B, stable=True)
        counts_P = torch.bincount(share_B, minlength=self.prompts)
        starts_P = counts_P.cumsum(0) - counts_P
        rank_B = torch.empty_like(order)
        rank_B[order] = torch.arange(len(order)) - starts_P[share_B[order]]
        self._rank_B = rank_B
        if self.fixed is None:
            longest = int(self._lengths.max())
            self._shape = _Shape(len(share_B), self.prompts, int(counts_P.max()), longest)
            self._tables: dict[int, tuple[Tensor, Tensor]] = {}
            padded = int(self._lengths.min()) < longest
            self._mask = self._padding().to(device=self._device, dtype=self._kind) if padded else None
            return
        for heads, table in self._tables.items():
            for fixed, now in zip(table, self._slot_numbers(heads), strict=True):
                fixed.copy_(now)
        if self._mask is not None:
            self._mask.copy_(self._padding())

    def _padding(self) -> Tensor:
        """Added to the scores of prompts, P×1×1×T; nothing to those that are computed and not there any more."""
        lengths_P = torch.full((self._shape.prompts,), self._shape.longest)
        lengths_P[: self.prompts] = self._lengths
        padding_PT = torch.arange(self._shape.longest)[None] >= lengths_P[:, None]
        return torch.zeros(padding_PT.shape).masked_fill_(padding_PT, -torch.inf)[:, None, None]

    def _slots(self, heads: int) -> tuple[Tensor, Tensor]:
        """From (row, head) to (prompt, head, slot) and back, as flat numbers, on the device. Layers differ in their
        heads in some families."""
        if heads not in self._tables:
            inward, outward = self._slot_numbers(heads)
            self._tables[heads] = inward.to(self._device), outward.to(self._device)
        return self._tables[heads]

    def _slot_numbers(self, heads: int) -> tuple[Tensor, Tensor]:
        """The same on the CPU. An empty slot repeats the first row's query, and a row that is not there any more reads
        the first slot; neither result is read."""
        shape, head_H = self._shape, torch.arange(heads)
        numbers = ((self._share_B[:, None] * heads + head_H) * shape.slots + self._rank_B[:, None]).flatten()
        outward = torch.zeros(shape.rows * heads, dtype=torch.long)
        outward[: len(numbers)] = numbers
        inward = torch.zeros(shape.prompts * heads * shape.slots, dtype=torch.long)
        inward[numbers] = torch.arange(len(numbers))
        return inward, outward


def partial(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of the queries over these keys alone, and log Σ exp of their scores (fp32), with which it can be joined
    to attention over others. All of shape [batch, head, position, D]; `mask` is added to the scores."""
    if query.device.type == "cpu":
        result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=mask, scale=scaling
        )
        return result
    return partial_by_products(query, key, value, mask, scaling)


def partial_by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """`partial` by two matrix products with fp32 scores between them, for devices without a kernel of ours to call."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.dtype == torch.float32:
        scores = query @ key.transpose(2, 3)
    else:
        flat = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), out_dtype=torch.float32)
        scores = flat.view(*query.shape[:3], key.shape[2])
    scores *= scale
    if mask is not None:
        scores += mask
    lse = torch.logsumexp(scores, -1)
    scores -= lse[..., None]
    return scores.exp_().to(value.dtype) @ value, lse


@torch.no_grad()
def shareable(model: Any) -> bool:
    """Whether every layer of the model attends plainly to all that came before, by way of `model.attention`, once for
    each layer of the cache. Determined by running two tokens through it. Sliding windows, sinks, capped scores,
    recurrent layers and layers that borrow another's keys are not for this cache."""
    cache = DynamicCache(config=model.config)
    if not ours(model) or not cache.layers or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return False
    seen: list[int | None] = []
    plain: list[bool] = []

    def look(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        odd = any(kwargs.get(name) is not None for name in _PLAIN) or attention_mask is not None
        sizes = query.shape[1] % key.shape[1] == 0 and query.shape[3] == key.shape[3] == value.shape[3]
        seen.append(getattr(module, "layer_idx", None))
        plain.append(not odd and sizes and getattr(module, "is_causal", True))
        return query.new_zeros((query.shape[0], query.shape[2], query.shape[1], value.shape[3])), None

    ids_BT = torch.zeros((1, 2), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    with attending(look):
        model.base_model(input_ids=ids_BT, past_key_values=cache, use_cache=True)
    return seen == list(range(len(cache.layers))) and all(plain)
