"""One suite across several runs: each run before and after, and its answers after training against a baseline run's on
the same items.

The statistics are those of a run's own pages and records (`evidence.compare`), with the baseline's answers in the place
of those before training. Runs are compared only where both answered the same items under one protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from cohort.evaluations.selectors import Points, points, suite_facts, tone
from cohort.evidence.compare import Item, compare_all
from cohort.evidence.items import SuiteFacts
from cohort.evidence.protocols import SAME_ITEMS, protocol_differences
from cohort.runs.models import EvalItem, EvalResult, Run
from cohort.runs.transitions import current_evaluations
from grpo_core.config.evaluation import HELDOUT
from grpo_core.stats.paired import holm
from grpo_core.stats.quantiles import Interval, wilson
from grpo_core.stats.unscored import scored_share


@dataclass(frozen=True)
class RunSuite:
    """One suite of one run."""

    run: Run
    before: EvalResult | None
    after: EvalResult | None
    own: dict[str, Any]
    """Before → after, as `evidence.compare.compare_all` gives it."""
    against: dict[str, Any] | None
    """The baseline's answers after training → this run's; None for the baseline, and where `reason` says why."""
    reason: str
    """Why it cannot be compared with the baseline; empty where it can, and for the baseline."""
    p: float | None = None
    """Two-sided p of the difference to the baseline, adjusted by Holm over the runs that are compared with it; None
    where scores are graded or items hang together."""

    @property
    def sides(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Share and interval before and after."""
        return self.own["before"], self.own["after"]

    @property
    def points(self) -> Points | None:
        return points(self.against["change"], self.against["margin"]) if self.against else None

    @property
    def own_points(self) -> Points | None:
        return points(self.own["change"], self.own["margin"])

    @property
    def tone(self) -> str:
        return tone(self.against) if self.against else ""


@dataclass(frozen=True)
class SuiteAcross:
    facts: SuiteFacts
    """By the baseline's config."""
    rows: tuple[RunSuite, ...]
    """In the order of the runs; a run without the suite is left out."""
    seeds_differ: bool
    """Whether answers were drawn with other random numbers."""


def results_across(runs: Sequence[Run]) -> dict[str, dict[int, dict[str, EvalResult]]]:
    """suite → run → before or after → its newest current evaluation; held-out problems first, then by name. Those
    while training have no texts, and may be of fewer items."""
    rows = current_evaluations(EvalResult.objects.filter(run__in=runs, phase__in=("before", "after")))
    newest = rows.order_by("run_id", "suite", "phase", "-attempt_id", "-seq").distinct("run_id", "suite", "phase")
    by_suite: dict[str, dict[int, dict[str, EvalResult]]] = {}
    for result in newest:
        by_suite.setdefault(result.suite, {}).setdefault(result.run_id, {})[result.phase] = result
    return {name: by_suite[name] for name in sorted(by_suite, key=lambda name: (name != HELDOUT, name))}


def suite_across(
    runs: Sequence[Run], baseline: Run, name: str, results: Mapping[int, Mapping[str, EvalResult]]
) -> SuiteAcross:
    """`results`: of this suite, as `results_across` has them. One query, over every item."""
    measured = [run for run in runs if run.pk in results]
    items = items_of([result for phases in results.values() for result in phases.values()])

    def side(result: EvalResult | None) -> list[Item] | None:
        return None if result is None else items.get(result.pk, [])

    facts = {run.pk: _facts(run, name, results[run.pk]) for run in measured}
    base = results.get(baseline.pk, {}).get("after")
    own_cases, cases, reasons = [], [], []
    for run in measured:
        before, after = (results[run.pk].get(phase) for phase in ("before", "after"))
        same = before is not None and after is not None and before.protocol == after.protocol
        own_cases.append((facts[run.pk], side(before), side(after), same, None))
        reason = "" if run == baseline else reason_not_comparable(base, after)
        reasons.append(reason)
        if run != baseline and not reason:
            cases.append((facts.get(baseline.pk, facts[run.pk]), side(base), side(after), True, None))
    compared = iter(compare_all(cases, resampled=False))
    rows = []
    for run, own, reason in zip(measured, compare_all(own_cases, resampled=False), reasons, strict=True):
        against = None if run == baseline or reason else next(compared)
        if against is not None and against["change"] is None:
            against, reason = None, "not the same items"
        before, after = (results[run.pk].get(phase) for phase in ("before", "after"))
        rows.append(RunSuite(run, before, after, own, against, reason))
    shown = facts.get(baseline.pk) or facts[measured[0].pk]
    seeds = {result.protocol.get("seed") for phases in results.values() for result in phases.values()}
    return SuiteAcross(shown, _adjusted(rows), len(seeds) > 1)


def _facts(run: Run, name: str, phases: Mapping[str, EvalResult]) -> SuiteFacts:
    config = run.parsed_config
    suite = next((suite for suite in config.eval.suites if suite.name == name), None)
    return suite_facts(suite, name, phases.get("after") or phases["before"], config)


def _adjusted(rows: Sequence[RunSuite]) -> tuple[RunSuite, ...]:
    known = [row.against["change"]["p_mcnemar"] for row in rows if row.against]
    adjusted = iter(holm([p for p in known if p is not None]))
    return tuple(
        replace(row, p=next(adjusted)) if row.against and row.against["change"]["p_mcnemar"] is not None else row
        for row in rows
    )


def reason_not_comparable(base: EvalResult | None, after: EvalResult | None) -> str:
    """In words; empty where nothing but the items themselves can still differ."""
    if base is None:
        return "the baseline was not evaluated after training"
    if after is None:
        return "not evaluated after training"
    return protocol_differences(base.protocol, after.protocol)


_ITEMS = """
    SELECT result.id, item.problem_id, item.score, item.truncated, item.error <> '', item.cluster, item.slice
    FROM runs_evalresult AS result
    JOIN runs_evalitem AS item
        ON (item.attempt_id, item.suite, item.phase) = (result.attempt_id, result.suite, result.phase)
        AND item.seq < result.seq
    WHERE result.id = ANY(%s)
"""


def items_of(results: Sequence[EvalResult]) -> dict[int, list[Item]]:
    """By evaluation."""
    by_result: dict[int, list[Item]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_ITEMS, [[result.pk for result in results]])
        for pk, *parts in cursor.fetchall():
            by_result.setdefault(pk, []).append(Item(*parts))
    return by_result


# ---------------------------------------------------------------------- totals


@dataclass(frozen=True)
class Share:
    share: float | None
    """Of the scored answers; None where none was scored."""
    interval: Interval | None
    """Wilson's, wider by all that unscored answers could be worth; None where items hang together, whose interval needs
    every item."""
    problems: int
    unscored: int


def shares_across(results: Mapping[str, Mapping[int, Mapping[str, EvalResult]]]) -> dict[str, dict[int, Share]]:
    """suite → run → what was right after training, from the totals alone: one query, however many items there are."""
    latest = {
        name: {run_id: phases["after"] for run_id, phases in by_run.items() if "after" in phases}
        for name, by_run in results.items()
    }
    # Which items hang together belongs to the items: one evaluation of each set of them is looked at.
    examples: dict[tuple[str, str], EvalResult] = {}
    for name, by_run in latest.items():
        for result in by_run.values():
            examples.setdefault((name, str(result.protocol.get(SAME_ITEMS))), result)
    clustered = _clustered([result.pk for result in examples.values()])

    def share(name: str, result: EvalResult) -> Share:
        example = examples[name, str(result.protocol.get(SAME_ITEMS))]
        n, unscored = result.problems, result.errors
        correct = min(result.correct, n - unscored)
        interval = None
        if n and example.pk not in clustered:
            interval = Interval(low=wilson(correct, n).low, high=wilson(correct + unscored, n).high)
        return Share(scored_share(correct, n, unscored), interval, n, unscored)

    return {
        name: {run_id: share(name, result) for run_id, result in by_run.items()}
        for name, by_run in latest.items()
        if by_run
    }


_CLUSTERED = """
    SELECT result.id FROM runs_evalresult AS result
    WHERE result.id = ANY(%s) AND EXISTS (
        SELECT 1 FROM runs_evalitem AS item
        WHERE (item.attempt_id, item.suite, item.phase) = (result.attempt_id, result.suite, result.phase)
            AND item.cluster <> ''
    )
"""


def _clustered(pks: Sequence[int]) -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(_CLUSTERED, [list(pks)])
        return {pk for (pk,) in cursor.fetchall()}


# ---------------------------------------------------------------------- items


@dataclass(frozen=True)
class ItemAcross:
    problem_id: str
    values: tuple[float | None, ...]
    """Scores after training, of each run in order; None: not answered, or not scored."""

    @property
    def key(self) -> str:
        """Names the item in an address."""
        return self.problem_id

    @property
    def spread(self) -> float:
        """Variance of the scores: ¼ where half of the runs are right, 0 where all agree."""
        known = [score for score in self.values if score is not None]
        mean = sum(known) / len(known)
        return sum((score - mean) ** 2 for score in known) / len(known)


def items_across(runs: Sequence[Run], results: Mapping[int, Mapping[str, EvalResult]]) -> list[ItemAcross]:
    """Items that two runs or more answered after training, those that they agree on least first."""
    latest = {run.pk: results[run.pk]["after"] for run in runs if "after" in results.get(run.pk, {})}
    by_result = items_of(list(latest.values()))
    by_run = {
        pk: {item.problem_id: None if item.failed else item.score for item in by_result.get(result.pk, ())}
        for pk, result in latest.items()
    }
    ids = dict.fromkeys(problem_id for scores in by_run.values() for problem_id in scores)
    rows = [ItemAcross(problem_id, tuple(by_run.get(run.pk, {}).get(problem_id) for run in runs)) for problem_id in ids]
    shared = [row for row in rows if sum(score is not None for score in row.values) > 1]
    return sorted(shared, key=lambda row: (-row.spread, row.problem_id))


def item_answers(results: Mapping[int, Mapping[str, EvalResult]], problem_id: str) -> dict[int, EvalItem]:
    """Run → its answer after training."""
    latest = [phases["after"] for phases in results.values() if "after" in phases]
    rows: QuerySet[EvalItem] = EvalItem.objects.filter(
        attempt__in=[result.attempt_id for result in latest],
        suite__in={result.suite for result in latest},
        phase="after",
        problem_id=problem_id,
    )
    return {item.run_id: item for item in rows}
