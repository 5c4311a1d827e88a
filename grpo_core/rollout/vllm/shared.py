"""Weights from one process to another of the same machine, through memory that has no name and no file.

The trainer writes them into a memfd in chunks; who may read it is who may look into the trainer's own memory: the same
user. A chunk is free to be written again once the reader has acknowledged it.
"""

import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_core.rollout.vllm.settings import CHUNK

_ALIGN = 64
Entry = tuple[str, str, list[int], int]
"""Name, type, shape and first byte of one tensor of a chunk."""


class Outgoing:
    """The writer's end."""

    def __init__(self, *, chunk: int = CHUNK) -> None:
        """`chunk`: most bytes at once, a single larger tensor apart."""
        self._chunk = chunk
        self._fd = os.memfd_create("grpo-weights", os.MFD_CLOEXEC)
        self._size = 0
        self._memory: mmap.mmap | None = None

    @property
    def location(self) -> list[int]:
        """Where another process finds it: process, file descriptor, size."""
        return [os.getpid(), self._fd, self._size]

    def chunks(self, weights: Mapping[str, Tensor]) -> Iterator[list[Entry]]:
        """Write chunk after chunk; each is there until the next one is requested."""
        for entries in planned(weights, self._chunk):
            *_, shape_first = entries[-1]
            self._have(shape_first + _bytes(weights[entries[-1][0]]))
            assert self._memory is not None
            for name, _, _, first in entries:
                tensor = weights[name]
                _view(self._memory, first, tensor.dtype, list(tensor.shape)).copy_(tensor.detach())
            yield entries

    def _have(self, size: int) -> None:
        if size <= self._size:
            return
        self._release()
        os.ftruncate(self._fd, size)
        self._memory, self._size = mmap.mmap(self._fd, size), size

    def _release(self) -> None:
        """Tensors over the memory are gone by now, so it can be closed."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def close(self) -> None:
        """May be called again."""
        self._release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def planned(weights: Mapping[str, Tensor], chunk: int) -> list[list[Entry]]:
    """The tensors in their order, in chunks of at most `chunk` bytes; one that is larger is a separate chunk."""
    chunks: list[list[Entry]] = []
    first = 0
    for name, tensor in weights.items():
        size = _bytes(tensor)
        if not chunks or first + size > chunk:
            chunks.append([])
            first = 0
        chunks[-1].append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), first))
        first += -(-size // _ALIGN) * _ALIGN
    return chunks


def incoming(location: list[int], entries: list[Any]) -> dict[str, Tensor]:
    """Copies of the tensors of one chunk, in main memory. Raises OSError when the writer is gone."""
    process, number, size = location
    fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY)
    try:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as memory:
            return {name: _copied(memory, first, getattr(torch, dtype), shape) for name, dtype, shape, first in entries}
    finally:
        os.close(fd)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _view(memory: mmap.mmap, first: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=first).view(shape)


def _copied(memory: mmap.mmap, first: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    size = _bytes(tensor)
    ctypes.memmove(tensor.data_ptr(), memory[first : first + size], size)
    return tensor
