"""Held-out accuracy before and after, with its uncertainty, and which problems changed."""

from dataclasses import dataclass

from django.db.models import QuerySet

from cohort.runs.models import EvalItem, EvalResult, Run
from grpo_core.stats import Interval, Paired, paired, verdict, wilson


@dataclass(frozen=True)
class Suite:
    """One suite of held-out problems; `after` is None until the run has been evaluated again."""

    name: str
    before: EvalResult | None
    after: EvalResult | None
    pair: Paired | None
    verdict: str
    same_protocol: bool

    @property
    def problems(self) -> int:
        known = self.after or self.before
        return known.problems if known else 0

    @property
    def before_interval(self) -> Interval | None:
        return wilson(self.before.correct, self.before.problems) if self.before and self.before.problems else None

    @property
    def after_interval(self) -> Interval | None:
        return wilson(self.after.correct, self.after.problems) if self.after and self.after.problems else None

    @property
    def before_share(self) -> float | None:
        return self.before.correct / self.before.problems if self.before and self.before.problems else None

    @property
    def after_share(self) -> float | None:
        return self.after.correct / self.after.problems if self.after and self.after.problems else None

    @property
    def points(self) -> float | None:
        """The difference in percentage points; so are its bounds and the smallest one that would be found."""
        return 100 * self.pair.difference if self.pair else None

    @property
    def points_low(self) -> float | None:
        return 100 * self.pair.low if self.pair else None

    @property
    def points_high(self) -> float | None:
        return 100 * self.pair.high if self.pair else None

    @property
    def points_mde(self) -> float | None:
        return 100 * self.pair.mde if self.pair else None

    @property
    def tone(self) -> str:
        return {"better": "is-right", "regressed": "is-wrong"}.get(
            self.verdict, "is-suspect" if self.verdict.startswith(("undecided", "worse")) else ""
        )


def suites(run: Run, *, margin: float) -> list[Suite]:
    """Every suite of the run. Before and after are compared item by item, and only under one protocol."""
    results: dict[str, dict[str, EvalResult]] = {}
    newest = EvalResult.objects.filter(run=run).order_by("suite", "phase", "-attempt_id", "-seq")
    for result in newest.distinct("suite", "phase"):
        results.setdefault(result.suite, {})[result.phase] = result
    return [_suite(name, phases.get("before"), phases.get("after"), margin) for name, phases in results.items()]


def _suite(name: str, before: EvalResult | None, after: EvalResult | None, margin: float) -> Suite:
    same = before is not None and after is not None and before.protocol == after.protocol
    pair = None
    if before is not None and after is not None and same:
        scores_before, scores_after = _scores(before), _scores(after)
        both = [problem for problem in scores_before if problem in scores_after]
        if both:
            pair = paired([scores_before[problem] for problem in both], [scores_after[problem] for problem in both])
    return Suite(name, before, after, pair, verdict(pair, margin) if pair else "", same)


def _scores(result: EvalResult) -> dict[str, float]:
    return dict(_items(result).values_list("problem_id", "score"))


def _items(result: EvalResult) -> QuerySet[EvalItem]:
    return EvalItem.objects.filter(
        run=result.run_id, attempt=result.attempt_id, suite=result.suite, phase=result.phase
    ).order_by("seq")


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


CHANGES = {"changed": "changed", "fixed": "fixed", "broken": "broken", "all": "all"}


def changed_items(suite: Suite, *, show: str, limit: int) -> tuple[list[Changed], int]:
    """(the first `limit` pairs of the chosen kind, how many there are)."""
    if suite.before is None or suite.after is None:
        return [], 0
    after = {item.problem_id: item for item in _items(suite.after)}
    pairs = [Changed(item, after[item.problem_id]) for item in _items(suite.before) if item.problem_id in after]
    chosen = [
        pair for pair in pairs if show == "all" or pair.kind == show or (show == "changed" and pair.kind != "same")
    ]
    return chosen[:limit], len(chosen)
