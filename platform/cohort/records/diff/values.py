"""Where JSON values differ: by path, and in words. Knows no Django."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from cohort.base.formatting import minus
from cohort.records.diff.words import NAMES, counts, element_words, key_words, number


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


class Missing:
    """In place of a value that a record has not."""


MISSING = Missing()


@dataclass(frozen=True)
class Place:
    path: str
    """`optim.steps`, `components[0].weight`; empty for the value itself."""
    words: str
    """`component format, weight`; empty for the value itself."""
    values: tuple[Any, ...]
    """MISSING where there is none."""


@dataclass(frozen=True)
class Change:
    path: str
    """As `Place.path`."""
    kind: Kind
    before: Any = None
    after: Any = None
    words: str = field(default="", compare=False)

    @property
    def difference(self) -> float | int | None:
        """after − before, where both are numbers that count something."""
        return difference(self.before, self.after) if counts(self.path) else None


def difference(before: Any, after: Any) -> float | int | None:
    if not (_number(before) and _number(after)):
        return None
    delta: float | int = after - before
    if isinstance(delta, float):  # 0.3 − 0.1 is 0.2 to a reader
        return float(f"{delta:.12g}")
    return delta


def places(values: Sequence[Any], *, noun: str, whole: bool = False) -> Iterator[Place]:
    """Every place at which values of JSON differ. Objects are compared by key; objects of a list by their name, where
    all have one, else by index; other lists as a whole, because a shifted list would otherwise differ at every index.

    `noun`: key of the values, of which an element of a list is one. What a value has not is one place, and with `whole`
    every place in what the others have there.
    """
    yield from _places(Place("", "", tuple(values)), noun, whole)


def _places(at: Place, noun: str, whole: bool) -> Iterator[Place]:
    present = [value for value in at.values if value is not MISSING and not (whole and value is None)]
    if whole or len(present) == len(at.values):
        if present and all(isinstance(value, Mapping) for value in present):
            for key in dict.fromkeys(key for value in present for key in value):
                values = (value.get(key, MISSING) if isinstance(value, Mapping) else MISSING for value in at.values)
                path = f"{at.path}.{key}" if at.path else str(key)
                yield from _places(_below(at, path, key_words(str(key)), values), str(key), whole)
            return
        if any(present) and all(map(_of_objects, present)):
            columns = _columns([value if isinstance(value, list) else [] for value in at.values])
            for which, index in {which: n for column in columns for n, which in enumerate(column)}.items():
                values = (column.get(which, MISSING) for column in columns)
                outer = replace(at, words=at.words.removesuffix(key_words(noun)).removesuffix(", "))
                of_one = _below(outer, f"{at.path}[{index}]", element_words(noun, which), values)
                yield from _places(of_one, noun, whole)
            return
    if not all(same(*pair) for pair in pairwise(at.values)):
        yield at


def _below(at: Place, path: str, words: str, values: Iterator[Any]) -> Place:
    return Place(path, f"{at.words}, {words}" if at.words else words, tuple(values))


def _columns(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[Any, Mapping[str, Any]]]:
    """The elements of each list by what they are recognised by: a name that is in all, and twice in none; else their
    number from 1."""
    for name in NAMES:
        columns = [{_which(element, name): element for element in elements} for elements in lists]
        named = all(isinstance(which, str | int) for column in columns for which in column)
        if named and [len(column) for column in columns] == [len(elements) for elements in lists]:
            return columns
    return [dict(enumerate(elements, 1)) for elements in lists]


def _which(element: Mapping[str, Any], name: str) -> Any:
    value = element.get(name)
    if isinstance(value, Mapping | list):
        return None
    return key_words(value) if name == "key" and isinstance(value, str) else value


def changes(before: Any, after: Any, *, noun: str = "value") -> Iterator[Change]:
    """As `places`, of two."""
    for place in places((before, after), noun=noun):
        first, second = place.values
        if first is MISSING:
            yield Change(place.path, Kind.ADDED, after=second, words=place.words)
        elif second is MISSING:
            yield Change(place.path, Kind.REMOVED, before=first, words=place.words)
        else:
            yield Change(place.path, Kind.CHANGED, first, second, words=place.words)


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
    return isinstance(value, list) and all(isinstance(element, Mapping) for element in value)
