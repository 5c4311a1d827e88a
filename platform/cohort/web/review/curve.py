"""Pass rate and mean reward of a problem by step, as plain SVG made on the server: no script, the theme's own colours,
exact values on hover and in the table of its groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from cohort.base.formatting import num
from cohort.web.svg import Plot, Tick


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Line:
    name: str
    css: str
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        return " ".join(f"{point.x},{point.y}" for point in self.points)


@dataclass(frozen=True)
class Curve:
    lines: tuple[Line, ...]
    across: tuple[Tick, ...]
    """Ticks of steps, `at` from the left."""
    up: tuple[Tick, ...]
    """Ticks of the values, `at` from the top."""
    plot: Plot

    @classmethod
    def of(cls, rows: Sequence[tuple[int, float | None, float | None]]) -> Self | None:
        """Rows of (step, pass rate, mean reward) in order; None where less than two steps have a value."""
        rates = [(step, rate) for step, rate, _ in rows if rate is not None]
        rewards = [(step, reward) for step, _, reward in rows if reward is not None]
        steps = sorted({step for step, _ in rates + rewards})
        if len(steps) < 2:
            return None
        values = [0.0, 1.0, *(reward for _, reward in rewards)]
        low, high, first, last = min(values), max(values), steps[0], steps[-1]

        plot = Plot(first=first, last=last, low=low, high=high, width=720, height=200, margin=10, top=10, bottom=24)

        def line(name: str, css: str, points: list[tuple[int, float]], shown: Callable[[float], str]) -> Line:
            titles = [
                Point(plot.x(step), plot.y(value), f"{name} at step {step:,}: {shown(value)}") for step, value in points
            ]
            return Line(name, css, tuple(titles))

        middle = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
        return cls(
            (
                line("mean reward", "reward", rewards, num),
                line("pass rate", "passed", rates, lambda rate: f"{100 * rate:.0f} %"),
            ),
            plot.across(middle, num),
            plot.up(sorted({low, 0.0, 0.5, 1.0, high}), num),
            plot,
        )
