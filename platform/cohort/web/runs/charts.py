"""The numbers of a run's charts, and how a long series is thinned without losing its spikes.

Reads numbers already stored; the drawing itself is plot.js.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.ingest.buckets import Numbers, joined

MAX_POINTS = 1000
"""Most steps that are drawn one by one, and most numbers of a metric. Of more steps, stretches are drawn."""


@dataclass(frozen=True)
class Piece:
    """One step, or several of one attempt as `buckets` has joined them."""

    first: int
    last: int
    metrics: Numbers
    at: float | None = None
    """Unix time of the last step, where it was read."""


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
    drawn = pieces if width == 1 else _stretches(pieces, width)
    names = dict.fromkeys(name for piece in drawn for name in piece.metrics)
    columns: tuple[dict[str, list[float | None]], ...] = ({}, {}, {})
    for name in names:
        numbers = [piece.metrics.get(name) for piece in drawn]
        last = columns[_LAST][name] = [None if number is None else number[_LAST] for number in numbers]
        if width > 1:
            low, high = ([None if number is None else number[at] for number in numbers] for at in (_LOW, _HIGH))
            if low != last or high != last:
                columns[_LOW][name], columns[_HIGH][name] = low, high
    return {
        "step": [piece.last for piece in drawn],
        "at": [piece.at for piece in drawn],
        "metrics": columns[_LAST],
        "low": columns[_LOW],
        "high": columns[_HIGH],
    }


_LOW, _HIGH, _LAST = 0, 1, 2
"""Of `Numbers`."""


def _stretches(pieces: Sequence[Piece], width: int) -> list[Piece]:
    """The pieces joined so that each has about `width` steps."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault((piece.first - 1) // width, []).append(piece)
    return [
        Piece(members[0].first, members[-1].last, joined(piece.metrics for piece in members), members[-1].at)
        for members in parts.values()
    ]
