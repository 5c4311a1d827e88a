"""Pass rate and mean reward of a problem by step, as plain SVG made on the server: no script, the theme's own colours,
exact values on hover and in the table of its groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from cohort.base.formatting import num

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 24


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


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
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    base: int = HEIGHT - _BOTTOM

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

        def x(step: int) -> float:
            return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (step - first) / (last - first), 1)

        def y(value: float) -> float:
            return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / (high - low)), 1)

        def line(name: str, css: str, points: list[tuple[int, float]], shown: Callable[[float], str]) -> Line:
            titles = [Point(x(step), y(value), f"{name} at step {step:,}: {shown(value)}") for step, value in points]
            return Line(name, css, tuple(titles))

        middle = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
        return cls(
            (
                line("mean reward", "reward", rewards, num),
                line("pass rate", "passed", rates, lambda rate: f"{100 * rate:.0f} %"),
            ),
            tuple(Tick(x(step), f"{step:,}") for step in middle),
            tuple(Tick(y(value), num(value)) for value in sorted({low, 0.0, 0.5, 1.0, high})),
        )
