"""The field of a curve that the server draws as plain SVG: its edges, and where a number lies in it. No script, the
theme's own colours; what uses it has exact values on hover and in a table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """`first` to `last` go from left to right, `low` to `high` from the bottom up; neither pair is equal."""

    first: float
    last: float
    low: float
    high: float
    width: int = 600
    height: int = 190
    left: int = 44
    margin: int = 24
    """Right of the field."""
    top: int = 12
    bottom: int = 26
    """Below the field."""

    @property
    def right(self) -> int:
        return self.width - self.margin

    @property
    def base(self) -> int:
        return self.height - self.bottom

    @property
    def inner(self) -> int:
        """Height of the field."""
        return self.base - self.top

    def x(self, value: float) -> float:
        return round(self.left + (self.right - self.left) * (value - self.first) / (self.last - self.first), 2)

    def y(self, value: float) -> float:
        return round(self.top + self.inner * (self.high - value) / (self.high - self.low), 2)

    def across(self, values: Iterable[float], text: Callable[[float], str]) -> tuple[Tick, ...]:
        """`at` from the left."""
        return tuple(Tick(self.x(value), text(value)) for value in values)

    def up(self, values: Iterable[float], text: Callable[[float], str]) -> tuple[Tick, ...]:
        """`at` from the top."""
        return tuple(Tick(self.y(value), text(value)) for value in values)
