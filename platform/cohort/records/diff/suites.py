"""Evaluated suites of two records side by side, row by row. Knows no Django."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.records.diff.values import Change, Kind, changes, difference, same

_CELLS = (
    ("problems", ("problems",), "count"),
    ("share before", ("before", "share"), "share"),
    ("share after", ("after", "share"), "share"),
    ("difference", ("change", "difference"), "points"),
    ("smallest visible", ("change", "mde"), "size"),
    ("margin", ("margin",), "size"),
    ("verdict", ("verdict",), "words"),
)


@dataclass(frozen=True)
class Cell:
    name: str
    unit: str
    """count, share (of 1), points (a difference of shares), size (the same without a sign) or words."""
    before: Any
    after: Any

    @property
    def equal(self) -> bool:
        return same(self.before, self.after)

    @property
    def difference(self) -> float | int | None:
        return difference(self.before, self.after)


@dataclass(frozen=True)
class SuiteDiff:
    suite: str
    kind: Kind
    cells: tuple[Cell, ...]
    """The figures of a table's row, equal ones too."""
    others: tuple[Change, ...]
    """All else that differs: intervals, slices, the clean subset, protocol."""


def suite_diffs(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> tuple[SuiteDiff, ...]:
    """Every suite of either, in the order of the second, then those only in the first."""
    first, second = {suite["suite"]: suite for suite in before}, {suite["suite"]: suite for suite in after}
    return tuple(
        _suite(name, first.get(name), second.get(name))
        for name in [*second, *(suite for suite in first if suite not in second)]
    )


def _suite(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> SuiteDiff:
    cells = tuple(Cell(label, unit, _dig(before, path), _dig(after, path)) for label, path, unit in _CELLS)
    if before is None or after is None:
        return SuiteDiff(name, Kind.ADDED if before is None else Kind.REMOVED, cells, ())
    shown = {".".join(path) for _, path, _ in _CELLS}
    others = tuple(change for change in changes(before, after) if change.path not in shown)
    kind = Kind.EQUAL if not others and all(cell.equal for cell in cells) else Kind.CHANGED
    return SuiteDiff(name, kind, cells, others)


def _dig(facts: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    here: Any = facts
    for name in path:
        here = here.get(name) if isinstance(here, Mapping) else None
    return here
