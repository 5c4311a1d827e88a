"""Which rows an update works on, where and in what portions. Depends on rows and config only, so every rank makes the
same plan."""

from collections.abc import Callable, Sequence

from grpo_core.algo.aggregation import RowFacts
from grpo_core.training.base import TrainRow


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
    """Rank of each row: within a mini-batch, rows are dealt by length, so that every rank has alike to do."""
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
    """What the denominators of one mini-batch ask; `keeps` says whether a used row has not been left out since."""
    return [
        RowFacts(
            length=len(rows[index].completion),
            used=rows[index].used and keeps(index),
            informative=rows[index].informative,
            group=rows[index].group,
        )
        for index in batch
    ]


def total_length(row: TrainRow) -> int:
    return len(row.prompt) + len(row.completion)
