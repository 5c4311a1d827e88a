"""Settings of a vLLM engine and requests to it; plain values that JSON carries. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_core.rollout.base import Decoding

CHUNK = 2**28
"""Most bytes of weights that are sent at once (256 MiB), a larger tensor apart."""
Sampled = tuple[list[int], list[float]]
"""Tokens of one completion, and their log-probabilities."""


@dataclass(frozen=True)
class Settings:
    """One engine."""

    model: str
    """Folder with config.json. No weight is read from it: all of them are sent."""
    dtype: str
    device: str
    """cpu or cuda."""
    positions: int
    """Most tokens of one sequence, prompt and completion together."""
    rows: int
    """Most sequences side by side."""
    memory_share: float
    """Part of a GPU's memory for weights and cache."""
    cache_bytes: int | None
    """Size of the cache of keys and values; None where `memory_share` decides."""
    eager: bool
    seed: int
    uncompiled: bool = False
    """Nothing in the engine's process is compiled by torch: no compiler is needed, and the first tokens come sooner."""
    devices: int = 1
    """GPUs that the model is split over."""
    sleeps: bool = False
    """Give the device's memory back between two phases of sampling."""
    beside: bool = False
    """One of several engines of processes that torchrun started, each with its own."""


@dataclass(frozen=True)
class Asked:
    """Completions of some prompts."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[Sequence[int]]
    """One of 63 bits for each completion, prompt by prompt."""
    decoding: Decoding
    stop: Sequence[int]
    """Ids that end a completion."""


class Sampler(Protocol):
    """An engine, wherever it runs. Everything it raises is a RolloutError, OutOfMemory, DeviceError, ExchangeError, or
    Interrupted."""

    def generate(self, request: Asked) -> list[list[Sampled]]:
        """A completion for each seed, prompt by prompt."""
        ...

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """log π at temperature 1 of each text's tokens, all but the first."""
        ...

    def load(self, weights: Any) -> None:
        """Take these weights, tensors by their name in a checkpoint; forget what was computed with others."""
        ...

    def close(self) -> None: ...


class Gone(Exception):
    """The server has ended, or does not answer any more. The message says how."""
