"""What the verifier passed and what people call right, over the steps of training, as plain SVG made on the server: the
run's own curve, and for each bin of judged steps both shares with their intervals. A table next to it has the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.formatting import num, percent
from cohort.records.answers import steps_text
from cohort.web.compare.curves import Curve
from cohort.web.svg import Plot, Tick

_SIDES = {"verifier": ("passed", -4, "the verifier passed"), "people": ("right", 4, "people call right")}
"""Who says so → (its rate, how far its mark is from the bin's middle, words)."""


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    low: float
    """Top and bottom of the interval, from the top of the picture."""
    high: float
    by: str
    """`people` or `verifier`, for the class and the words."""
    words: str


@dataclass(frozen=True)
class RatesDrawn:
    line: str
    """Points of a polyline: the mean of the success component; empty where the run did not report it."""
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    plot: Plot


def rates_drawn(by_step: Sequence[Mapping[str, Any]], curve: Curve | None) -> RatesDrawn:
    """`by_step` as of `evidence.judgements`, not empty; the scale of shares is 0 to 1."""
    points = [*zip(curve.step, curve.value, strict=True)] if curve is not None else []
    steps: list[int] = [step for step, _ in points] + [row[end] for row in by_step for end in ("first", "last")]
    first, last = min(steps), max(*steps, min(steps) + 1)

    plot = Plot(first=first, last=last, low=0, high=1)

    def mark(row: Mapping[str, Any], by: str) -> Mark:
        name, shift, what = _SIDES[by]
        part = row[name]
        interval = f"{percent(part['share'])} [{percent(part['low'])}, {percent(part['high'])}]"
        steps = steps_text(row["first"], row["last"])
        return Mark(
            x=plot.x((row["first"] + row["last"]) / 2) + shift,
            y=plot.y(part["share"]),
            low=plot.y(part["low"]),
            high=plot.y(part["high"]),
            by=by,
            words=f"{steps}: {what} {part['count']} of {part['n']}, {interval}",
        )

    return RatesDrawn(
        line=" ".join(f"{plot.x(step)},{plot.y(min(max(value, 0.0), 1.0))}" for step, value in points),
        marks=tuple(mark(row, by) for row in by_step for by in _SIDES),
        across=plot.across(sorted({first, round((first + last) / 2), last}), lambda step: f"step {num(step)}"),
        up=plot.up((0.0, 0.5, 1.0), lambda share: percent(share, 0)),
        plot=plot,
    )
