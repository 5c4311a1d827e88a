"""The numbers of a run's charts, and how a long series is thinned without losing its spikes.

Reads numbers already stored; the drawing itself is plot.js.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.ingest.buckets import Numbers, joined, joined_steps, point

MAX_POINTS = 1000
"""Most steps that are drawn one by one, and most numbers of a metric. Of more steps, stretches are drawn."""


@dataclass(frozen=True)
class Piece:
    """One step, or several of one attempt as `buckets` has joined them."""

    first: int
    last: int
    values: dict[str, float]
    """By metric; of a bucket its last ones."""
    bucket: Numbers | None = None
    """None of one step."""
    at: float | None = None
    """Unix time of the last step, where it was read."""

    @property
    def numbers(self) -> Numbers:
        return point(self.values) if self.bucket is None else self.bucket


def width_of(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> int:
    """How many steps a drawn stretch of a long series has; 1 when steps are drawn one by one."""
    widest = max((piece.last - piece.first + 1 for piece in pieces), default=1)
    if widest == 1 and len(pieces) <= limit:
        return 1
    steps = pieces[-1].last - pieces[0].first + 1
    return widest * -(-steps // (widest * (limit // 3)))


def series(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> dict[str, Any]:
    """{step, at: of each drawn stretch's last step, metrics: {name: its last value in each, null where it is absent},
    low, high: {name: its lowest, its highest}}; low and high have no metric in which they are the last."""
    width = width_of(pieces, limit=limit)
    columns: tuple[dict[str, list[float | None]], ...] = ({}, {}, {})
    if width == 1:
        ends = [(piece.last, piece.at) for piece in pieces]
        for name in dict.fromkeys(name for piece in pieces for name in piece.values):
            columns[LAST][name] = [piece.values.get(name) for piece in pieces]
    else:
        stretches = _stretches(pieces, width)
        ends = [(last, at) for last, at, _ in stretches]
        for name in dict.fromkeys(name for _, _, joined_numbers in stretches for name in joined_numbers):
            numbers = [joined_numbers.get(name) for _, _, joined_numbers in stretches]
            low, high, last = ([None if number is None else number[at] for number in numbers] for at in range(3))
            columns[LAST][name] = last
            if low != last or high != last:
                columns[_LOW][name], columns[_HIGH][name] = low, high
    return {
        "step": [last for last, _ in ends],
        "at": [at for _, at in ends],
        "metrics": columns[LAST],
        "low": columns[_LOW],
        "high": columns[_HIGH],
    }


_LOW, _HIGH, LAST = 0, 1, 2
"""Of `Numbers`."""


def _stretches(pieces: Sequence[Piece], width: int) -> list[tuple[int, float | None, Numbers]]:
    """(last step, its time, numbers) of the pieces joined so that each has about `width` steps."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault((piece.first - 1) // width, []).append(piece)
    return [(members[-1].last, members[-1].at, _joined(members)) for members in parts.values()]


def _joined(members: Sequence[Piece]) -> Numbers:
    if all(piece.bucket is None for piece in members):
        return joined_steps(piece.values for piece in members)
    return joined(piece.numbers for piece in members)
