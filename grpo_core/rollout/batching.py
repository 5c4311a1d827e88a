"""Which completions are sampled in one batch: a function of the prompts' lengths and the limits alone, so that a run
can be repeated. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One completion to be made."""

    prompt: int
    """Number of its prompt among those of the call."""
    sample: int


@dataclass(frozen=True)
class Limits:
    """Of one batch."""

    rows: int
    """Most completions."""
    tokens: int
    """Most tokens whose keys and values are held, if every completion gets as long as it may. One row is always let
    in."""
    completion: int
    """Longest completion."""
    shared: bool
    """Whether a prompt is held once for all its rows."""


def plan_batches(prompts: Sequence[Sequence[int]], *, samples: int, limits: Limits) -> list[list[Row]]:
    """All rows, in batches of like lengths. Equal prompts are neighbours. A prompt's rows are parted only where a batch
    cannot hold them all, for each batch has to run it again; and batches are of like size, for a few rows take nearly
    as long as many."""
    numbers = sorted(range(len(prompts)), key=lambda number: (len(prompts[number]), tuple(prompts[number]), number))
    rows = [Row(number, sample) for number in numbers for sample in range(samples)]
    if not rows:
        return []
    widest = _cut(rows, prompts, limits, limits.rows)
    for most in range(-(-len(rows) // len(widest)), limits.rows, max(1, samples)):
        even = _cut(rows, prompts, limits, most)
        if len(even) == len(widest):
            return even
    return widest


def _cut(rows: list[Row], prompts: Sequence[Sequence[int]], limits: Limits, most: int) -> list[list[Row]]:
    batches: list[list[Row]] = []
    start = 0
    while start < len(rows):
        end = start + _fitting(rows, start, prompts, limits, most)
        if end < len(rows):
            cut = end
            while cut > start and rows[cut].prompt == rows[cut - 1].prompt:
                cut -= 1
            end = cut if cut > start else end
        batches.append(rows[start:end])
        start = end
    return batches


def _fitting(rows: list[Row], start: int, prompts: Sequence[Sequence[int]], limits: Limits, most: int) -> int:
    """How many rows from `start` on one batch can hold. Prompts lie padded to the longest, which comes last."""
    distinct, last = 0, None
    for count, row in enumerate(rows[start : start + most]):
        prompt = tuple(prompts[row.prompt])
        distinct, last = distinct + (prompt != last), prompt
        held = (distinct if limits.shared else count + 1) * len(prompt) + (count + 1) * limits.completion
        if held > limits.tokens and count:
            return count
    return min(most, len(rows) - start)
