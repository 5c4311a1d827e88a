"""Where two JSON values differ, by dotted path, and how each is written. Knows no Django."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cohort.base.formatting import minus


def one_line(value: Any) -> str:
    """A value as JSON; text as it is."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return minus(text) if isinstance(value, int | float) else text


def number(value: float) -> str:
    return minus(f"{value:,}") if isinstance(value, int) else minus(f"{value:,.6g}")


def signed(value: float | None) -> str:
    """A difference with its sign."""
    if value is None:
        return ""
    return f"+{number(value)}" if value > 0 else number(value)


def figure(value: Any, unit: str) -> str:
    """Of a suite's row: a count, a share as a percentage, a difference of shares in points, or words."""
    if value is None:
        return "–"
    if unit == "share":
        return minus(f"{100 * value:.1f} %")
    if unit in ("points", "size"):
        return minus(f"{100 * value:{'+' if unit == 'points' else ''}.1f}")
    return number(value) if unit == "count" else str(value)


class Kind(StrEnum):
    """Kind of change from the first record to the second."""

    EQUAL = "equal"
    CHANGED = "changed"
    ADDED = "added"
    """Only in the second."""
    REMOVED = "removed"
    """Only in the first."""
    WITHHELD = "withheld"
    """One of the two does not show it, so the change is unknown."""


@dataclass(frozen=True)
class Change:
    path: str
    """`optim.steps`, `components[0].weight`; empty for the value itself."""
    kind: Kind
    before: Any = None
    after: Any = None

    @property
    def difference(self) -> float | int | None:
        """after − before, where both are numbers."""
        return difference(self.before, self.after)


def difference(before: Any, after: Any) -> float | int | None:
    if not (_number(before) and _number(after)):
        return None
    delta: float | int = after - before
    if isinstance(delta, float):  # 0.3 − 0.1 is 0.2 to a reader
        return float(f"{delta:.12g}")
    return delta


def changes(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Every path at which the two differ. Objects are compared by key, lists of objects by index, other lists as a
    whole, because a shifted list would otherwise differ at every index."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in [*before, *(key for key in after if key not in before)]:
            child_path = f"{path}.{name}" if path else str(name)
            if name not in after:
                yield Change(child_path, Kind.REMOVED, before=before[name])
            elif name not in before:
                yield Change(child_path, Kind.ADDED, after=after[name])
            else:
                yield from changes(before[name], after[name], child_path)
    elif _of_objects(before) and _of_objects(after):
        for index in range(max(len(before), len(after))):
            child_path = f"{path}[{index}]"
            if index >= len(after):
                yield Change(child_path, Kind.REMOVED, before=before[index])
            elif index >= len(before):
                yield Change(child_path, Kind.ADDED, after=after[index])
            else:
                yield from changes(before[index], after[index], child_path)
    elif not same(before, after):
        yield Change(path, Kind.CHANGED, before, after)


def same(before: Any, after: Any) -> bool:
    """Whether two JSON values are equal. True is not 1; 1 and 1.0 are the same number."""
    if isinstance(before, bool) is not isinstance(after, bool):
        return False
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(same(before[name], after[name]) for name in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, Mapping) for element in value)
