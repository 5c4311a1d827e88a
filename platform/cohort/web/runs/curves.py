"""The score of a suite over the steps of training as plain SVG made on the server: a band for the interval, the best
checkpoint marked, exact values on hover and in a table next to it."""

import math
from dataclasses import dataclass

from cohort.base.formatting import num
from cohort.evaluations.during import Curve, Point
from cohort.web.lab.charts import Tick
from grpo_core.text import format_percent

WIDTH, HEIGHT = 600, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 24, 12, 26


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    point: Point


@dataclass(frozen=True)
class CurveDrawn:
    curve: Curve
    line: str
    """Points of a polyline."""
    band: str
    """Points of a polygon around the interval."""
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    """Steps, `at` from the left."""
    up: tuple[Tick, ...]
    """Shares, `at` from the top."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    base: int = HEIGHT - _BOTTOM


def curve_drawn(curve: Curve) -> CurveDrawn:
    """Of at least one point. The scale of shares covers every interval, in tenths."""
    points = curve.points
    first, last = points[0].step, max(points[-1].step, points[0].step + 1)
    low = math.floor(10 * min(point.low for point in points) + 1e-9) / 10
    high = math.ceil(10 * max(point.high for point in points) - 1e-9) / 10
    low, high = max(low, 0.0), max(min(high, 1.0), low + 0.1)

    def x(step: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (step - first) / (last - first), 2)

    def y(share: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - share) / (high - low), 2)

    upper = [f"{x(point.step)},{y(point.high)}" for point in points]
    lower = [f"{x(point.step)},{y(point.low)}" for point in reversed(points)]
    steps = sorted({first, round((first + last) / 2), last})
    return CurveDrawn(
        curve=curve,
        line=" ".join(f"{x(point.step)},{y(point.score)}" for point in points),
        band=" ".join([*upper, *lower]),
        marks=tuple(Mark(x(point.step), y(point.score), point) for point in points),
        across=tuple(Tick(x(step), f"step {num(step)}") for step in steps),
        up=tuple(Tick(y(share), format_percent(share)) for share in (low, (low + high) / 2, high)),
    )
