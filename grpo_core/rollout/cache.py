"""A key-value cache that is filled in place, and loses the rows that have ended.

transformers' DynamicCache copies everything it holds at each token; this one doubles its room when it is full and
otherwise writes where the token belongs. Knows nothing of sampling.

Shapes: B rows · H heads · T positions held · D size of a head.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from grpo_core.errors import ModelError


def compact_rows(wanted_B: Tensor) -> Tensor:
    """The present index of each row to keep, by its new index: those at the front stay where they are, and the last
    ones fill the gaps between them. `wanted_B` is bool, on the CPU."""
    count = int(wanted_B.sum())
    keep = torch.arange(count)
    keep[~wanted_B[:count]] = wanted_B[count:].nonzero()[:, 0] + count
    return keep


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's keys and values in buffers larger than what they hold; `keys` and `values` are views of them."""

    _keys: Tensor
    _values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized or self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
            return self._hold(key_states, value_states)
        held = self.keys.shape[-2]
        total = held + key_states.shape[-2]
        if total > self._keys.shape[-2]:
            self._keys, self._values = _wider(self.keys, total), _wider(self.values, total)
        self._keys[:, :, held:total] = key_states
        self._values[:, :, held:total] = value_states
        self.keys, self.values = self._keys[:, :, :total], self._values[:, :, :total]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self._hold(self.keys.index_select(0, indices), self.values.index_select(0, indices))

    def keep(self, keep_B: Tensor) -> None:
        """`keep_rows` in place: only the rows that change their index are copied."""
        assert self.keys is not None
        assert self.values is not None
        to_B = (keep_B != torch.arange(len(keep_B), device=keep_B.device)).nonzero()[:, 0]
        for held in (self.keys, self.values):
            held.index_copy_(0, to_B, held.index_select(0, keep_B[to_B]))
        self._keys, self._values = self._keys[: len(keep_B)], self._values[: len(keep_B)]
        self.keys, self.values = self.keys[: len(keep_B)], self.values[: len(keep_B)]

    def _hold(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._keys = self.keys = keys
        self._values = self.values = values
        return keys, values


def _wider(held_BHTD: Tensor, needed: int) -> Tensor:
    rows, heads, length, size = held_BHTD.shape
    buffer = held_BHTD.new_empty((rows, heads, max(needed, length + max(64, length)), size))
    buffer[:, :, :length] = held_BHTD
    return buffer


def make_cache(config: Any) -> DynamicCache:
    """A cache for a model of this config; layers other than plain full attention stay as transformers makes them."""
    cache = DynamicCache(config=config)
    roomy: Any = RoomyLayer
    cache.layers = [roomy() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def repeat_rows(cache: DynamicCache, rows_B: Tensor) -> None:
    """Every layer's row b becomes a copy of what is its row `rows_B[b]` now."""
    for layer in cache.layers:
        _plain(layer).batch_select_indices(rows_B)


def keep_rows(cache: DynamicCache, keep_B: Tensor) -> None:
    """The same, of rows chosen by `compact_rows`."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.keep(keep_B)
        else:
            _plain(layer).batch_select_indices(keep_B)


def _plain(layer: Any) -> DynamicLayer:
    if not isinstance(layer, DynamicLayer):
        raise ModelError(f"the local sampler cannot share a prompt's {type(layer).__name__} (not plain attention)")
    return layer
