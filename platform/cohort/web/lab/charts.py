"""Drawings of the lab's pages as plain SVG made on the server: no script, the theme's own colours, exact values on
hover and in a table next to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.base.formatting import num
from cohort.web.svg import Tick

WIDTH, HEIGHT = 600, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 6, 8, 26


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HistogramDrawn:
    bars: tuple[Bar, ...]
    across: tuple[Tick, ...]
    """Ticks of the rewards, `at` from the left."""
    up: tuple[Tick, ...]
    """Ticks of the counts, `at` from the top."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    base: int = HEIGHT - _BOTTOM


def histogram_drawn(edges: Sequence[float], counts: Sequence[int]) -> HistogramDrawn | None:
    """Bars of the bins; None where nothing was rewarded. Where all rewards are equal, one bar is in the middle."""
    if not counts:
        return None
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    top = _round_up(max(counts))
    single = len(counts) == 1
    step = inner_width / (20 if single else len(counts))
    bars = []
    for index, count in enumerate(counts):
        height = inner_height * count / top
        x = _LEFT + (inner_width - step) / 2 if single else _LEFT + index * step
        bars.append(
            Bar(
                x=round(x + 1, 2),
                y=round(_TOP + inner_height - height, 2),
                width=round(step - 2, 2),
                height=round(height, 2),
                low=edges[index],
                high=edges[index + 1],
                count=count,
            )
        )
    if single:
        across: tuple[Tick, ...] = (Tick(_LEFT + inner_width / 2, num(edges[0])),)
    else:
        low, high = edges[0], edges[-1]
        across = tuple(
            Tick(round(_LEFT + inner_width * part / 4, 2), num(low + (high - low) * part / 4)) for part in range(5)
        )
    halves = (0, top // 2, top) if top > 1 else (0, top)
    up = tuple(Tick(round(_TOP + inner_height * (1 - value / top), 2), num(value)) for value in halves)
    return HistogramDrawn(tuple(bars), across, up)


def _round_up(count: int) -> int:
    """The least of 1, 2, 4, 10, 20, 40, 100 … that is not below the count, so that its half is a round number too."""
    size = 1
    while True:
        for factor in (1, 2, 4):
            if count <= factor * size:
                return factor * size
        size *= 10


@dataclass(frozen=True)
class Interval:
    """A share with its interval on a line of 120."""

    low: float
    width: float
    at: float


def interval_drawn(rate: float | None, bounds: tuple[float, float] | None) -> Interval | None:
    if rate is None or bounds is None:
        return None
    low, high = bounds
    return Interval(round(120 * low, 2), round(max(120 * (high - low), 1), 2), round(120 * rate, 2))
