"""Held-out accuracy before and after, with its uncertainty, and which problems changed.

The record is made from the same rows by the same function, so page and card cannot say different things.
"""

from dataclasses import dataclass

from django.db.models import QuerySet

from cohort.governance.compare import Item, compare
from cohort.governance.schema import Change, Comparison
from cohort.governance.shown import tone
from cohort.runs.models import EvalItem, EvalResult, Run
from cohort.runs.selectors.standing import standing_evaluations

CHANGES = ("changed", "fixed", "broken", "all")
"""Which problems a page may show."""


@dataclass(frozen=True)
class Suite:
    """One suite of held-out problems; `after` is None until the run has been evaluated again."""

    before: EvalResult | None
    after: EvalResult | None
    compared: Comparison
    same_protocol: bool

    @property
    def name(self) -> str:
        return self.compared.suite

    @property
    def change(self) -> Change | None:
        return self.compared.change

    @property
    def verdict(self) -> str:
        return self.compared.verdict

    @property
    def tone(self) -> str:
        return tone(self.verdict)

    @property
    def points(self) -> float | None:
        """The difference in percentage points; so are its bounds and the smallest one that would be found."""
        return 100 * self.change.difference if self.change else None

    @property
    def points_low(self) -> float | None:
        return 100 * self.change.interval.low if self.change else None

    @property
    def points_high(self) -> float | None:
        return 100 * self.change.interval.high if self.change else None

    @property
    def points_mde(self) -> float | None:
        return 100 * self.change.mde if self.change else None


def suites(run: Run, *, margin: float) -> list[Suite]:
    """Every suite of the run. Before and after are compared item by item, and only when both answered the same
    problems under one protocol."""
    results: dict[str, dict[str, EvalResult]] = {}
    for result in newest_results(run):
        results.setdefault(result.suite, {})[result.phase] = result
    return [_suite(name, phases.get("before"), phases.get("after"), margin) for name, phases in results.items()]


def newest_results(run: Run) -> QuerySet[EvalResult]:
    """One evaluation for each suite and phase: the newest that stands."""
    newest = standing_evaluations(EvalResult.objects.filter(run=run)).order_by("suite", "phase", "-attempt_id", "-seq")
    return EvalResult.objects.filter(pk__in=newest.distinct("suite", "phase").values("pk")).order_by("suite", "phase")


def evaluations_known(run: Run) -> str:
    """Which evaluations stand. Nothing of one changes once it is stored, so while this is the same, so is all that can
    be said of them."""
    return ",".join(str(pk) for pk in newest_results(run).values_list("pk", flat=True))


def result_items(result: EvalResult) -> QuerySet[EvalItem]:
    """The problems of one evaluation, in order."""
    same = EvalItem.objects.filter(attempt=result.attempt_id, suite=result.suite, phase=result.phase)
    return same.filter(seq__lt=result.seq).order_by("seq")


def _suite(name: str, before: EvalResult | None, after: EvalResult | None, margin: float) -> Suite:
    shown = after or before
    assert shown is not None, "a suite is known by its results"
    same = before is not None and after is not None and before.protocol == after.protocol
    compared = compare(
        name,
        _scores(before) if before else None,
        _scores(after) if after else None,
        margin=margin,
        protocol=shown.protocol,
        same_protocol=same,
    )
    return Suite(before, after, compared, same)


def _scores(result: EvalResult) -> list[Item]:
    rows = result_items(result).values_list("problem_id", "score", "truncated", "error")
    return [Item(problem, score, truncated, bool(error)) for problem, score, truncated, error in rows]


@dataclass(frozen=True)
class Changed:
    """One problem before and after."""

    before: EvalItem
    after: EvalItem

    @property
    def pair(self) -> tuple[EvalItem, EvalItem]:
        return self.before, self.after

    @property
    def kind(self) -> str:
        if self.after.score > self.before.score:
            return "fixed"
        return "broken" if self.after.score < self.before.score else "same"


def changed_items(suite: Suite, *, show: str, limit: int | None) -> tuple[list[Changed], int]:
    """(the first `limit` pairs of the chosen kind, all without one; how many there are)."""
    if suite.before is None or suite.after is None:
        return [], 0
    after = {item.problem_id: item for item in result_items(suite.after)}
    pairs = [Changed(item, after[item.problem_id]) for item in result_items(suite.before) if item.problem_id in after]
    chosen = [
        pair for pair in pairs if show == "all" or pair.kind == show or (show == "changed" and pair.kind != "same")
    ]
    return chosen[:limit], len(chosen)
