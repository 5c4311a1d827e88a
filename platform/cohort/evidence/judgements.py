"""How people and the verifier agree on the samples that people judged, from the judgements alone: what pages show,
records seal and the offline check computes again.

All three must give the same numbers, so all three come here. Knows no Django. Sources: Wilson 1927 (`wilson`);
`cohen_kappa` names its own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from cohort.evidence.canonical import canonical
from cohort.evidence.zip_layout import MAX_ITEMS
from grpo_core.stats.agreement import cohen_kappa
from grpo_core.stats.quantiles import wilson

VERDICTS = ("right", "wrong", "unsure")
BIN = 10
"""Decided samples that a bin of steps has at least, where there are so many."""
MOST_BINS = 12
CLASSES = {"finish_reason": "finish reason", "rewarded_by": "rewarded by", "label": "label"}
"""What samples are counted by, and its words. A sample may be in several classes of one kind, or in none."""
MAX_TEXT = 500
"""Characters of the name of a class."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one reviewer finds of one sample, next to what the verifier found."""

    step: int
    group: int
    sample: int
    """Step, group and sample are those of the run's commitments and traces."""
    reviewer: int
    """Numbered within the record; no name."""
    verdict: str
    passed: bool | None
    """By the verifier; None where the sample was masked or the verifier could not say."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Kind of class (`CLASSES`) → the sample's classes."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.step, self.group, self.sample

    def line(self) -> dict[str, Any]:
        """As a line of judgements.jsonl."""
        return asdict(self)

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> "Judgement":
        """Raises KeyError, TypeError or ValueError for a bad line."""
        numbers = [line[name] for name in ("step", "group", "sample", "reviewer")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise TypeError("step, group, sample and reviewer must be whole numbers")
        if line["verdict"] not in VERDICTS:
            raise ValueError(f"a verdict must be one of {', '.join(VERDICTS)}")
        if line["passed"] is not None and type(line["passed"]) is not bool:
            raise TypeError("passed must be true, false or null")
        classes = line["classes"]
        if not isinstance(classes, dict) or not set(classes) <= set(CLASSES):
            raise ValueError(f"classes must be of {', '.join(CLASSES)}")
        for names in classes.values():
            if not isinstance(names, list) or not all(isinstance(n, str) and len(n) <= MAX_TEXT for n in names):
                raise TypeError(f"classes must be lists of texts of at most {MAX_TEXT} characters")
        step, group, sample, reviewer = numbers
        return cls(step, group, sample, reviewer, line["verdict"], line["passed"], classes)


def read_judgements(lines: Iterable[Mapping[str, Any]]) -> list[Judgement]:
    """Of judgements.jsonl. Raises as `from_line` does, and ValueError where a reviewer judges a sample twice or the
    lines of one sample contradict each other."""
    judgements: list[Judgement] = []
    for number, line in enumerate(lines, start=1):
        if number > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS:,} judgements")
        judgements.append(Judgement.from_line(line))
    if len({(*judgement.key, judgement.reviewer) for judgement in judgements}) < len(judgements):
        raise ValueError("a reviewer judges a sample twice")
    of_verifier: dict[tuple[int, int, int], tuple[Any, Any]] = {}
    for judgement in judgements:
        facts = (judgement.passed, judgement.classes)
        if of_verifier.setdefault(judgement.key, facts) != facts:
            raise ValueError("two judgements of one sample name different verdicts of the verifier")
    return judgements


def write_judgements(judgements: Iterable[Judgement]) -> Iterator[bytes]:
    """judgements.jsonl, line by line."""
    return (canonical(judgement.line()) + b"\n" for judgement in judgements)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample that people call right or wrong and that the verifier decided too."""

    step: int
    passed: bool
    right: bool
    """By people."""
    classes: Mapping[str, Sequence[str]]


def review_figures(judgements: Iterable[Judgement]) -> dict[str, Any]:
    """The figures, JSON-ready; docs/record.md describes each.

    A sample counts by the judgement that more reviewers gave; by "unsure" where as many said right as wrong. What is
    compared with the verifier are samples that people call right or wrong and that the verifier decided.
    """
    by_sample: dict[tuple[int, int, int], list[Judgement]] = {}
    for judgement in judgements:
        by_sample.setdefault(judgement.key, []).append(judgement)
    verdicts = {key: majority(row.verdict for row in rows) for key, rows in by_sample.items()}
    decided = [
        _Sample(rows[0].step, rows[0].passed, verdicts[key] == "right", rows[0].classes)
        for key, rows in sorted(by_sample.items())
        if rows[0].passed is not None and verdicts[key] != "unsure"
    ]
    return {
        "reviewers": len({row.reviewer for rows in by_sample.values() for row in rows}),
        "judgements": sum(map(len, by_sample.values())),
        "samples": len(by_sample),
        "judged": {name: sum(verdict == name for verdict in verdicts.values()) for name in VERDICTS},
        "disagreeing": sum(len({row.verdict for row in rows}) > 1 for rows in by_sample.values()),
        "verifier": against_verifier([(row.passed, row.right) for row in decided]) if decided else None,
        "by_step": [{"first": rows[0].step, "last": rows[-1].step, **_cells(rows)} for rows in _bins(decided) if rows],
        "by_class": [
            {"kind": kind, "name": name, **_cells(rows)}
            for kind in CLASSES
            for name, rows in sorted(_by_class(decided, kind).items())
        ],
    }


def majority(verdicts: Iterable[str]) -> str:
    """What more reviewers say; "unsure" where as many say right as wrong."""
    counts = Counter(verdicts)
    if counts["right"] == counts["wrong"]:
        return "unsure"
    return "right" if counts["right"] > counts["wrong"] else "wrong"


def _bins(samples: Sequence[_Sample]) -> list[list[_Sample]]:
    """By step, which is never split: each bin as soon as it has enough; what is left over goes into the last."""
    enough = max(BIN, math.ceil(len(samples) / MOST_BINS))
    bins: list[list[_Sample]] = [[]]
    for _, rows in groupby(samples, key=lambda sample: sample.step):
        if len(bins[-1]) >= enough:
            bins.append([])
        bins[-1].extend(rows)
    if len(bins) > 1 and len(bins[-1]) < enough:
        bins[-2].extend(bins.pop())
    return bins


def _by_class(samples: Iterable[_Sample], kind: str) -> dict[str, list[_Sample]]:
    groups: dict[str, list[_Sample]] = {}
    for sample in samples:
        for name in sample.classes.get(kind, ()):
            groups.setdefault(name, []).append(sample)
    return groups


def _cells(samples: Sequence[_Sample]) -> dict[str, Any]:
    return against_verifier([(sample.passed, sample.right) for sample in samples])


def against_verifier(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """`pairs`: (the verifier passed it, people call it right), at least one."""
    n, cells = len(pairs), Counter(pairs)
    agreeing = cells[True, True] + cells[False, False]
    passed, right = cells[True, True] + cells[True, False], cells[True, True] + cells[False, True]
    kappa = cohen_kappa(pairs)
    return {
        "both_right": cells[True, True],
        "paid_though_wrong": cells[True, False],
        "unpaid_though_right": cells[False, True],
        "both_wrong": cells[False, False],
        "agreement": rate(agreeing, n),
        "false_positives": rate(cells[True, False], passed),
        "false_negatives": rate(cells[False, True], n - passed),
        "passed": rate(passed, n),
        "right": rate(right, n),
        "kappa": None if kappa.value is None else {"value": kappa.value, "low": kappa.low, "high": kappa.high},
    }


def rate(count: int, n: int) -> dict[str, Any] | None:
    """A share with Wilson's 95 % interval; None of nothing."""
    if n == 0:
        return None
    interval = wilson(count, n)
    return {"count": count, "n": n, "share": count / n, "low": interval.low, "high": interval.high}
