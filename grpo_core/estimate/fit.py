"""From two measured sizes of a piece of work to the cost of another size. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Cost = fixed + each · size."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        return self.fixed + self.each * size


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Through the smallest and the largest of (size, cost). What a larger one cost less is noise: then, and with one
    size alone, cost is in proportion to size. Nothing costs less than nothing, so a line that would begin below 0 is
    proportional too."""
    (small, cheap), (large, dear) = min(points), max(points)
    if large > small:
        each = (dear - cheap) / (large - small)
        if each >= 0 and dear - each * large >= 0:
            return Line(dear - each * large, each)
    return Line(0.0, dear / large)


def grown(points: Sequence[tuple[float, float]], *, full: float) -> float:
    """A peak at size `full`, from peaks at two sizes: it grows along their line and never shrinks. From the size `full`
    on it grows no more, as of work that is done in portions of that size."""
    (small, low), (large, high) = min(points), max(points)
    if large >= full or large == small:
        return max(low, high)
    return max(low, high) + max(0.0, high - low) / (large - small) * (full - large)
