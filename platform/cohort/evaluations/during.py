"""What was measured while training, suite by suite, and which checkpoint is the best by it."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count

from cohort.evaluations.selectors import HELDOUT_TITLE, Suite
from cohort.runs.models import Checkpoint, EvalResult, Run
from cohort.runs.transitions import current_evaluations, current_rows, current_steps
from grpo_core.config.evaluation import HELDOUT, REWARD
from grpo_core.config.kinds import AnyConfig
from grpo_core.stats.unscored import scored_share


@dataclass(frozen=True)
class Point:
    """One evaluation of a suite, as shares, with its 95 % interval."""

    step: int
    score: float
    low: float
    high: float
    problems: int
    best: bool
    """Whether the run's best checkpoint is the one of this step."""


@dataclass(frozen=True)
class Curve:
    suite: str
    title: str
    decides: bool
    """Whether it decides the best checkpoint."""
    points: tuple[Point, ...]
    """By step; with the evaluation before training where it answered the same problems."""

    @property
    def best(self) -> Point | None:
        return next((point for point in self.points if point.best), None)


def curves(run: Run, config: AnyConfig, suites: Sequence[Suite]) -> list[Curve]:
    """Of every suite that was evaluated while training, in the order of the config; `suites` as of `suites_cached`.
    Three queries."""
    during = EvalResult.objects.filter(run=run, phase="during")
    results = list(current_evaluations(during).order_by("step", "attempt_id").values("step", "suite", "problems"))
    if not results:
        return []
    steps = current_steps(run).filter(step__in={result["step"] for result in results})
    metrics = dict(steps.values_list("step", "metrics"))
    best = best_step(run)
    titles = {suite.name: suite.title for suite in config.eval.suites} | {HELDOUT: HELDOUT_TITLE}
    drawn = []
    for name in config.eval.during_suites:
        decides = name == config.best_by
        points: dict[int, Point] = {}
        for result in results:
            step = result["step"]
            own = metrics.get(step, {})
            if result["suite"] == name and f"eval/{name}/score" in own:
                score, low, high = (own[f"eval/{name}/{part}"] for part in ("score", "low", "high"))
                points[step] = Point(step, score, low, high, result["problems"], best=decides and step == best)
        if not points:
            continue
        first = _before(suites, name, next(iter(points.values())).problems, best=decides and best == 0)
        drawn.append(Curve(name, titles.get(name, name), decides, (*first, *points.values())))
    return drawn


def _before(suites: Sequence[Suite], name: str, problems: int, *, best: bool) -> tuple[Point, ...]:
    suite = next((suite for suite in suites if suite.name == name), None)
    if suite is None or suite.before is None or suite.before.problems != problems:
        return ()
    side = suite.compared["before"]
    return (Point(0, side["share"], side["interval"]["low"], side["interval"]["high"], problems, best),)


def times_evaluated(run: Run) -> dict[str, int]:
    """Suite → how often it was evaluated while training."""
    during = current_evaluations(EvalResult.objects.filter(run=run, phase="during"))
    return dict(during.order_by("suite").values_list("suite").annotate(Count("pk")))


def best_step(run: Run) -> int | None:
    """Step of the run's best checkpoint; None while there is none."""
    best = current_rows(Checkpoint.objects.filter(run=run, best=True)).values_list("step", flat=True)
    return best.first()


@dataclass(frozen=True)
class BestShown:
    """The best checkpoint in words."""

    step: int | None
    """None while there is none."""
    by: str
    """What decides: "held-out problems", a suite's title, or "training reward"."""
    score: float | None
    """A share; None where the training reward decides, or the evaluation before training answered other problems."""


def best_shown(run: Run, config: AnyConfig) -> BestShown | None:
    """None where the best is not kept. Two queries."""
    if not config.checkpoints.best:
        return None
    step = best_step(run)
    if config.best_by == REWARD:
        return BestShown(step, "training reward", None)
    titles = {suite.name: suite.title for suite in config.eval.suites} | {HELDOUT: "held-out problems"}
    by = titles.get(config.best_by, config.best_by)
    if step is None:
        return BestShown(None, by, None)
    results = EvalResult.objects.filter(run=run, suite=config.best_by, step=step, phase="during" if step else "before")
    result = current_evaluations(results).order_by("-attempt_id").values_list("correct", "problems", "errors").first()
    limited = step == 0 and config.eval.during_limit is not None
    return BestShown(step, by, scored_share(*result) if result and not limited else None)
