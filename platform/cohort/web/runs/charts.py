"""The numbers of a run's charts, and how a long series is thinned without losing its spikes.

Reads numbers already stored; the drawing itself is charts.js.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.ingest.buckets import Numbers, joined
from cohort.web.runs.chart_list import CHARTS, Chart

MAX_POINTS = 1000
"""Most points sent for one chart. A longer series is cut into stretches of which lowest, highest and last stay."""


@dataclass(frozen=True)
class Piece:
    """One step, or several of one attempt as `buckets` has joined them."""

    first: int
    last: int
    metrics: Numbers


def width_of(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> int:
    """How many steps a drawn stretch of a long series has; 1 when steps are drawn one by one."""
    widest = max((piece.last - piece.first + 1 for piece in pieces), default=1)
    if widest == 1:
        return 1
    steps = pieces[-1].last - pieces[0].first + 1
    return widest * -(-steps // (widest * (limit // 3)))


def series(pieces: Sequence[Piece], *, limit: int = MAX_POINTS) -> dict[str, dict[str, list[Any]]]:
    """Per chart: `step` and one list per column, at most about `limit` points. A step without the first column is left
    out of that chart; a later column that is absent is null."""
    width = width_of(pieces, limit=limit)
    drawn: dict[str, dict[str, list[Any]]] = {}
    for chart in CHARTS:
        leading = chart.columns[0]
        present = [piece for piece in pieces if leading in piece.metrics]
        if width == 1:
            kept = [present[index] for index in thin([piece.metrics[leading][_LAST] for piece in present], limit)]
            points = [
                (piece.last, [_value(chart, piece.metrics, column, _LAST) for column in chart.columns])
                for piece in kept
            ]
        else:
            points = [point for stretch in _stretches(present, width) for point in _points(chart, stretch)]
        drawn[chart.id] = {
            "step": [step for step, _ in points],
            **{column: [values[index] for _, values in points] for index, column in enumerate(chart.columns)},
        }
    return drawn


_LOW, _HIGH, _LAST = 0, 1, 2


def _stretches(pieces: Sequence[Piece], width: int) -> list[Piece]:
    """The pieces joined so that each has about `width` steps."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault((piece.first - 1) // width, []).append(piece)
    return [
        Piece(members[0].first, members[-1].last, joined(piece.metrics for piece in members))
        for members in parts.values()
    ]


def _points(chart: Chart, stretch: Piece) -> list[tuple[int, list[float | None]]]:
    """What is drawn of a stretch: its lowest, highest and last values. Where in it the lowest and the highest were is
    not known; they are drawn at its beginning and in its middle. Shares of a whole show their last value, because
    lowest shares do not add up to one; a spread has no extremes besides those of its line."""
    first, last, numbers = stretch.first, stretch.last, stretch.metrics
    flat = all(numbers[column][_LOW] == numbers[column][_HIGH] for column in chart.columns if column in numbers)
    if chart.kind == "stack" or flat:
        extremes = [(last, _LAST)]
    elif last - first < 2:
        extremes = [(first, _LOW), (last, _HIGH)]
    else:
        extremes = [(first, _LOW), ((first + last) // 2, _HIGH), (last, _LAST)]
    return [
        (
            step,
            [
                _value(chart, numbers, column, _LAST if chart.kind == "band" and index else statistic)
                for index, column in enumerate(chart.columns)
            ],
        )
        for step, statistic in extremes
    ]


def _value(chart: Chart, numbers: Numbers, column: str, statistic: int) -> float | None:
    if column not in numbers:
        return None
    value = numbers[column][statistic]
    return value if chart.scale == 1.0 else value * chart.scale


def thin(values: Sequence[float], limit: int) -> list[int]:
    """Indices of the values to keep, in order: all of them up to `limit`, else the first of all and the lowest, highest
    and last of each bucket."""
    if len(values) <= limit:
        return list(range(len(values)))
    buckets = (limit - 1) // 3
    kept = {0}
    for bucket in range(buckets):
        start, end = bucket * len(values) // buckets, (bucket + 1) * len(values) // buckets
        indices = range(start, end)
        kept |= {min(indices, key=values.__getitem__), max(indices, key=values.__getitem__), end - 1}
    return sorted(kept)
