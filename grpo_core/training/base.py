"""What a training engine takes and gives for one step."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from grpo_core.algo.aggregation import RowFacts


def products(kind: str, device: torch.device) -> AbstractContextManager[object]:
    """Within it, models compute as engine.autocast `kind` says."""
    return nullcontext() if kind == "none" else torch.autocast(device.type, dtype=torch.bfloat16)


class Training(Protocol):
    """What the loop, checkpoints and evaluations need of whatever learns."""

    kl_coef: float
    """The current β; 0 without a penalty."""
    changed_in: int
    """Newest step whose update has moved weights, if only in part. While it is the current step, there is no state to
    resume from but the one at its end."""

    def whole(self) -> AbstractContextManager[None]:
        """Within it the model holds the newest weights whole, on every rank, so that anything may sample from it or
        save it. Every rank enters and leaves it. Never entered twice, nor around an update."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """All tensors that training needs to continue between two steps, by what they belong to, whole. Every rank
        calls it; the first one's answer is written. They are the live ones: to be written before the next step."""

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]], *, kl_coef: float, step: int) -> None:
        """Take over what `state` gave after `step` steps, whichever weights gave it. Raises CheckpointError when it is
        of another model."""


TokenSignals = dict[str, list[float] | list[bool]]
"""Column of files/token_file.py → one value for each token of a completion."""


@dataclass(frozen=True)
class TrainRow:
    """One completion as the update sees it."""

    prompt: Sequence[int]
    completion: Sequence[int]
    advantage: float | Sequence[float]
    """One number for all tokens, or one for each."""
    used: bool
    """False for a masked sample: it is in no sum and in no denominator."""
    group: int = 0
    """Index of its group in the step: mini-batches do not split groups."""
    informative: bool = True
    """Whether its group carries a signal; counts with algorithm.denominator: informative."""
    sampler_logprobs: Sequence[float] | None = None
    """log π of each token as the sampler had it; None where no correction and no report is wanted."""
    stale: bool = False
    """Sampled before the last update (dynamic sampling's surplus, engine.one_step_off): its old log-probabilities are
    the sampler's, unless algorithm.correction weighs it."""
    traced: bool = False
    """Whether the update returns what it computes of each token."""
    counted: int | None = None
    """Tokens of the completion that denominators count; None: all. Fewer where it holds turns of others between the
    policy's, whose advantage is 0."""

    @property
    def length(self) -> int:
        """Tokens of the completion that count."""
        return len(self.completion) if self.counted is None else self.counted


@dataclass(frozen=True)
class UpdateResult:
    """What an update did."""

    metrics: dict[str, float]
    tokens: int = 0
    """Of the completions that it learned from: those that were left out, or cannot change anything, are not in it."""
    masked: dict[int, str] = field(default_factory=dict)
    """Index of a row that the update left out, and why (a records.MaskCause)."""
    clipped: dict[int, float] = field(default_factory=dict)
    """Index of a row → share of its tokens that was clipped in the last pass over it; empty where the ratio cannot
    leave 1."""
    token_signals: dict[int, TokenSignals] = field(default_factory=dict)
    """Of each row that is traced, what the update knew of its tokens, on every rank."""


# Which rows an update works on, where and in what portions. Depends on rows and config only, so every rank makes the
# same plan.


def mini_batches(rows: Sequence[TrainRow], parts: int) -> list[list[int]]:
    """Rows of each mini-batch, in the order of sampling. Groups stay whole and are dealt as evenly as they go. Without
    rows there is one empty mini-batch: the optimiser steps all the same."""
    groups = list(dict.fromkeys(row.group for row in rows))
    part_of = {group: index * parts // len(groups) for index, group in enumerate(groups)}
    batches: list[list[int]] = [[] for _ in range(parts)]
    for index, row in enumerate(rows):
        batches[part_of[row.group]].append(index)
    return [batch for batch in batches if batch] or [[]]


def owners(rows: Sequence[TrainRow], batches: Sequence[Sequence[int]], world: int) -> dict[int, int]:
    """Rank of each row: within a mini-batch, rows are dealt by length, so that every rank has equal work."""
    owner_of: dict[int, int] = {}
    for batch in batches:
        by_length = sorted(batch, key=lambda index: (-total_length(rows[index]), index))
        owner_of |= {index: dealt % world for dealt, index in enumerate(by_length)}
    return owner_of


def gives_gradient(row: TrainRow, *, zero_is_inert: bool) -> bool:
    """Whether the row must go through the model: masked rows never do, and rows of advantage 0 only where something
    else (KL, entropy, a critic) acts on them."""
    if not row.used:
        return False
    nonzero = row.advantage != 0.0 if isinstance(row.advantage, float) else any(row.advantage)
    return nonzero or not zero_is_inert


def row_facts(rows: Sequence[TrainRow], batch: Sequence[int], keeps: Callable[[int], bool]) -> list[RowFacts]:
    """What the denominators of one mini-batch need; `keeps` returns whether a used row has not been left out since."""
    return [
        RowFacts(
            length=rows[index].length,
            used=rows[index].used and keeps(index),
            informative=rows[index].informative,
            group=rows[index].group,
        )
        for index in batch
    ]


def total_length(row: TrainRow) -> int:
    return len(row.prompt) + len(row.completion)
