"""Reward by length of the samples that a filter selects: as fields of a grid with their counts, and each sample where
there are few. Of however many, one query counts all and one fills the grid. Reads only.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import nextafter
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import Avg, Case, Count, F, FloatField, Func, IntegerField, Max, Min, Q, QuerySet, Value, When
from django.db.models.functions import Cast

from cohort.review.facets import VERIFIER, component_order
from cohort.review.filters import SampleFilter
from cohort.review.models import Sample
from cohort.runs.models import Run

ACROSS, UP = 60, 40
"""Fields of the grid, at most."""
MOST_POINTS = 2_000
"""Samples that are drawn one by one."""
RIGHT = "right"
"""The colour where none is chosen: right or wrong by the verifier."""


@dataclass(frozen=True)
class Axis:
    edges: tuple[float, ...]
    """Lower edges of its bins, rising."""
    high: float
    """The largest value."""
    whole: bool
    """Its values are whole numbers."""

    @classmethod
    def of(cls, low: float, high: float, most: int, *, whole: bool) -> "Axis":
        """At most so many bins of equal width; one where all values are equal."""
        if low == high:
            return cls((low,), high, whole)
        if whole:
            span, count = int(high - low) + 1, min(most, int(high - low) + 1)
            return cls(tuple(low + -(-span * at // count) for at in range(count)), high, whole)
        return cls(tuple(low + (high - low) * at / most for at in range(most)), high, whole)

    def bounds(self, first: int, last: int | None = None) -> tuple[float, float]:
        """(smallest, largest value) in the bins from `first` to `last`, both inside."""
        after = (first if last is None else last) + 1
        if after >= len(self.edges):
            return self.edges[first], self.high
        edge = self.edges[after]
        return self.edges[first], edge - 1 if self.whole else nextafter(edge, float("-inf"))

    def bin_of(self, value: float) -> int:
        return bisect_right(self.edges, value) - 1


@dataclass(frozen=True)
class Point:
    group_id: int
    number: int
    """Of the sample in its group, from 1 on."""
    step: int
    tokens: int
    reward: float
    colour: float | None


@dataclass(frozen=True)
class Cell:
    """A field of the grid with samples in it."""

    x: int
    y: int
    count: int
    colour: float | None
    """Mean of the samples that have one."""


@dataclass(frozen=True)
class Scatter:
    matching: int
    """Samples that fit the filter."""
    tokens: Axis
    reward: Axis
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    """All of them where they are few, else none."""

    @property
    def drawn(self) -> int:
        """Those with a reward and a length."""
        return sum(cell.count for cell in self.cells)

    @property
    def left_out(self) -> int:
        return self.matching - self.drawn


def colours_of(run: Run) -> tuple[str, ...]:
    return (RIGHT, *component_order(run.scored_by))


def scatter(run: Run, looked_for: SampleFilter, colour: str) -> Scatter | None:
    """`colour`: one of `colours_of`. None where no sample that fits has a reward and a length. Two queries."""
    samples = looked_for.samples(run).order_by()
    has_reward = Q(reward__isnull=False, tokens__isnull=False)
    totals = samples.aggregate(
        matching=Count("pk"),
        drawn=Count("pk", filter=has_reward),
        shortest=Min("tokens", filter=has_reward),
        longest=Max("tokens", filter=has_reward),
        least=Min("reward", filter=has_reward),
        most=Max("reward", filter=has_reward),
    )
    if not totals["drawn"]:
        return None
    tokens = Axis.of(totals["shortest"], totals["longest"], ACROSS, whole=True)
    reward = Axis.of(totals["least"], totals["most"], UP, whole=False)
    scored = samples.filter(has_reward).annotate(colour=_colour(run, colour))
    if totals["drawn"] <= MOST_POINTS:
        rows = scored.order_by("step", "pk").values_list("group_id", "index", "step", "tokens", "reward", "colour")
        points = tuple(Point(group, index + 1, *rest) for group, index, *rest in rows)
        return Scatter(totals["matching"], tokens, reward, _cells(points, tokens, reward), points)
    return Scatter(totals["matching"], tokens, reward, _grid(scored, tokens, reward), ())


def _colour(run: Run, colour: str) -> Any:
    if colour == RIGHT:
        true, false = (Cast(Value(value), FloatField()) for value in (1, 0))  # 1.0 would be a slower numeric
        return Case(When(VERIFIER.has("right"), then=true), When(VERIFIER.has("wrong"), then=false))
    return F(f"component_values__{component_order(run.scored_by).index(colour)}")


def _bin(column: str, axis: Axis) -> Func:
    """As `Axis.bin_of`, by the same edges."""
    edges = Value(list(axis.edges), output_field=ArrayField(FloatField()))
    template = "width_bucket(%(expressions)s::float8[]) - 1"
    return Func(Cast(column, FloatField()), edges, template=template, output_field=IntegerField())


def _grid(scored: QuerySet[Sample], tokens: Axis, reward: Axis) -> tuple[Cell, ...]:
    binned = scored.annotate(x=_bin("tokens", tokens), y=_bin("reward", reward)).values("x", "y")
    counted = binned.annotate(count=Count("pk"), mean=Avg("colour")).order_by("x", "y")
    return tuple(Cell(*row) for row in counted.values_list("x", "y", "count", "mean"))


def _cells(points: Sequence[Point], tokens: Axis, reward: Axis) -> tuple[Cell, ...]:
    by_place: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        by_place.setdefault((tokens.bin_of(point.tokens), reward.bin_of(point.reward)), []).append(point)
    cells = []
    for (x, y), inside in sorted(by_place.items()):
        known = [point.colour for point in inside if point.colour is not None]
        cells.append(Cell(x, y, len(inside), sum(known) / len(known) if known else None))
    return tuple(cells)
