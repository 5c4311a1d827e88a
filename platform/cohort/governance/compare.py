"""One suite before and after, from its items alone: used to seal a record and, offline, to check it.

Both uses must give the same numbers, so both come here. Knows no Django.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.governance.limits import MAX_ITEMS
from cohort.governance.schema import Change, Comparison, Side, Span
from grpo_core.data.loaders import MAX_ID_CHARS
from grpo_core.stats import paired, verdict, wilson

NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Item:
    """What counts of one held-out problem in one evaluation."""

    problem_id: str
    score: float
    truncated: bool
    failed: bool

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> "Item":
        """From a line of evals/before.jsonl or after.jsonl. Raises KeyError, TypeError or ValueError for none."""
        score, truncated, problem = line["score"], line["truncated"], str(line["problem_id"])
        if isinstance(score, bool) or not isinstance(score, int | float) or not isinstance(truncated, bool):
            raise TypeError("score must be a number and truncated true or false")
        if not 0 <= score <= 1:
            raise ValueError("score must lie between 0 and 1")
        if len(problem) > MAX_ID_CHARS:
            raise ValueError(f"problem_id has more than {MAX_ID_CHARS} characters")
        return cls(problem, float(score), truncated, bool(line["error"]))


def compare(
    suite: str,
    before: Sequence[Item] | None,
    after: Sequence[Item] | None,
    *,
    margin: float,
    protocol: Mapping[str, Any],
    same_protocol: bool,
) -> Comparison:
    """Shares with their intervals, and the paired change when both sides answered the same problems alike."""
    change, words = None, "evaluated once only"
    if before and after:
        scores = {item.problem_id: item.score for item in after}
        if same_protocol and len(before) == len(after) and all(item.problem_id in scores for item in before):
            pair = paired([item.score for item in before], [scores[item.problem_id] for item in before])
            words = verdict(pair, margin)
            change = Change(
                difference=pair.difference,
                interval=Span(low=pair.low, high=pair.high),
                fixed=pair.fixed,
                broken=pair.broken,
                both_right=pair.both_right,
                both_wrong=pair.both_wrong,
                p_mcnemar=pair.p_mcnemar,
                mde=pair.mde,
            )
        else:
            words = NOT_COMPARABLE
    return Comparison(
        suite=suite,
        problems=len(after or before or ()),
        before=_side(before),
        after=_side(after),
        change=change,
        margin=margin,
        verdict=words,
        protocol=dict(protocol),
    )


def by_suite(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Item]]:
    """Items of an evaluation file, by suite, in the file's order. Raises as `Item.from_line` does."""
    found: dict[str, list[Item]] = {}
    for number, line in enumerate(lines, start=1):
        if number > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS:,} items")
        found.setdefault(str(line["suite"]), []).append(Item.from_line(line))
    return found


def _side(items: Sequence[Item] | None) -> Side | None:
    if not items:
        return None
    correct = sum(item.score for item in items)
    interval = wilson(min(correct, float(len(items))), len(items))
    return Side(
        correct=correct,
        share=correct / len(items),
        interval=Span(low=interval.low, high=interval.high),
        truncated=sum(item.truncated for item in items),
        errors=sum(item.failed for item in items),
    )
