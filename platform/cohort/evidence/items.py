"""What statistics need of a suite and of an evaluated item, from rows or from a card. Knows no Django."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from cohort.evidence.zip_layout import MAX_ITEMS
from grpo_core.stats.inferiority import HigherIs

MAX_TEXT = 200
"""Characters of a problem's id, its cluster and its slice."""


@dataclass(frozen=True, slots=True)
class SuiteFacts:
    """What a suite is, without its items. The margin is fixed before the run."""

    suite: str
    title: str
    category: str
    higher_is: HigherIs
    sensitive: bool
    margin: float
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, comparison: Mapping[str, Any]) -> "SuiteFacts":
        """The facts that a comparison (of a record) carries. Raises KeyError where one is missing."""
        return cls(**{fact.name: comparison[fact.name] for fact in fields(cls)})


@dataclass(frozen=True, slots=True)
class Item:
    """One item in one evaluation."""

    problem_id: str
    score: float
    """0 to 1."""
    truncated: bool
    failed: bool
    """The scorer raised, or gave no score: `score` is 0 and counts for nothing."""
    cluster: str = ""
    """Items with the same cluster are dependent, such as one problem in several languages; empty: on no other."""
    slice: str = ""
    """The part of the suite that is counted separately, such as a language; empty: none."""

    @property
    def unit(self) -> tuple[bool, str]:
        """The independent unit: the cluster, or the item alone."""
        return (True, self.cluster) if self.cluster else (False, self.problem_id)

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> "Item":
        """From a line of evals/before.jsonl or after.jsonl. Raises KeyError, TypeError or ValueError for a bad line."""
        score, truncated = line["score"], line["truncated"]
        if isinstance(score, bool) or not isinstance(score, int | float) or not isinstance(truncated, bool):
            raise TypeError("score must be a number and truncated true or false")
        if not 0 <= score <= 1:
            raise ValueError("score must lie between 0 and 1")
        texts = (line["problem_id"], line.get("cluster", ""), line.get("slice", ""))
        for name, text in zip(("problem_id", "cluster", "slice"), texts, strict=True):
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise ValueError(f"{name} must be text of at most {MAX_TEXT} characters")
        problem_id, cluster, part = texts
        return cls(problem_id, float(score), truncated, bool(line["error"]), cluster, part)


@dataclass(frozen=True, slots=True)
class Pair:
    """One item before and after."""

    item: Item
    """As it was after; id, cluster and slice are those of both."""
    before: float
    after: float
    lacks: tuple[bool, bool] = (False, False)
    """Whether the score before, and the one after, is missing."""

    @property
    def scored(self) -> bool:
        """Both times."""
        return not any(self.lacks)

    def filled(self, before: float, after: float) -> "Pair":
        """With these scores where they are missing."""
        filled_before = before if self.lacks[0] else self.before
        return Pair(self.item, filled_before, after if self.lacks[1] else self.after)


def by_suite(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Item]]:
    """Items of an evaluation file, by suite, in the file's order. Raises as `Item.from_line` does."""
    grouped: dict[str, list[Item]] = {}
    for number, line in enumerate(lines, start=1):
        if number > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS:,} items")
        grouped.setdefault(str(line["suite"]), []).append(Item.from_line(line))
    return grouped


def sorted_once(items: Sequence[Item]) -> list[Item]:
    """The items by id. Raises ValueError where two have one id."""
    ordered = sorted(items, key=lambda item: item.problem_id)
    for left, right in pairwise(ordered):
        if left.problem_id == right.problem_id:
            raise ValueError(f"the item {left.problem_id!r} was evaluated twice")
    return ordered


def pairs(before: Sequence[Item], after: Sequence[Item]) -> list[Pair] | None:
    """The items of both, which must be sorted; None unless they are the same items in the same clusters and slices."""
    if len(before) != len(after):
        return None
    both = [*zip(before, after, strict=True)]
    if any(_key(old) != _key(new) for old, new in both):
        return None
    return [Pair(new, old.score, new.score, (old.failed, new.failed)) for old, new in both]


def _key(item: Item) -> tuple[str, str, str]:
    return item.problem_id, item.cluster, item.slice
