"""The score of a suite over the steps of training as plain SVG made on the server: a band for the interval, the best
checkpoint marked, exact values on hover and in a table next to it."""

import math
from dataclasses import dataclass

from cohort.base.formatting import num
from cohort.evaluations.during import Curve, Point
from cohort.web.svg import Plot, Tick
from grpo_core.text import format_percent


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    point: Point


@dataclass(frozen=True)
class CurveDrawn:
    curve: Curve
    plot: Plot
    line: str
    """Points of a polyline."""
    band: str
    """Points of a polygon around the interval."""
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    """Steps, `at` from the left."""
    up: tuple[Tick, ...]
    """Shares, `at` from the top."""


def curve_drawn(curve: Curve) -> CurveDrawn:
    """Of at least one point. The scale of shares covers every interval, in tenths."""
    points = curve.points
    first, last = points[0].step, max(points[-1].step, points[0].step + 1)
    low = math.floor(10 * min(point.low for point in points) + 1e-9) / 10
    high = math.ceil(10 * max(point.high for point in points) - 1e-9) / 10
    low, high = max(low, 0.0), max(min(high, 1.0), low + 0.1)

    plot = Plot(first=first, last=last, low=low, high=high)

    upper = [f"{plot.x(point.step)},{plot.y(point.high)}" for point in points]
    lower = [f"{plot.x(point.step)},{plot.y(point.low)}" for point in reversed(points)]
    steps = sorted({first, round((first + last) / 2), last})
    return CurveDrawn(
        curve=curve,
        plot=plot,
        line=" ".join(f"{plot.x(point.step)},{plot.y(point.score)}" for point in points),
        band=" ".join([*upper, *lower]),
        marks=tuple(Mark(plot.x(point.step), plot.y(point.score), point) for point in points),
        across=plot.across(steps, lambda step: f"step {num(step)}"),
        up=plot.up((low, (low + high) / 2, high), format_percent),
    )
