"""How many groups of a run will carry a signal, from what its model answered before training, next to what came."""

from dataclasses import dataclass
from statistics import fmean

from django.db.models import Count

from cohort.evaluations.selectors import newest_results, result_items
from cohort.runs.models import Run
from cohort.runs.transitions import current_steps
from grpo_core.config.evaluation import HELDOUT
from grpo_core.stats.forecast import GROUP_SIZES, Forecast, informative

FIRST = 10
"""Steps that are compared with the forecast: later ones are of another policy."""


@dataclass(frozen=True)
class ForecastShown:
    run: Run
    """Whose evaluation before training it is from."""
    problems: int
    samples: int
    """Completions of each."""
    greedy: bool
    """Evaluated at temperature 0, which training does not sample at."""
    sizes: list[Forecast]
    group: int
    """G of the run that is shown or launched."""
    came: float | None
    """Mean share of informative groups over the first steps; None before the first, and of another G."""
    steps: int
    """Of these."""


def forecast_of(run: Run, group: int | None = None) -> ForecastShown | None:
    """`group`: G of the run that is to be launched; else the run's own. None where the held-out problems were not
    evaluated before training."""
    result = newest_results(run).filter(suite=HELDOUT, phase="before").first()
    if result is None:
        return None
    scores = result_items(result).filter(error="").order_by().values_list("score").annotate(Count("pk"))
    counts = dict(scores.values_list("score", "pk__count"))
    config, samples = run.parsed_config, run.parsed_config.eval.samples_per_problem
    if not counts:
        return None
    group = group or config.sampling.group_size
    comparable = group == config.sampling.group_size
    steps = current_steps(run)[:FIRST].values_list("metrics", flat=True) if comparable else ()
    came = [metrics["frac_informative"] for metrics in steps if "frac_informative" in metrics]
    return ForecastShown(
        run=run,
        problems=sum(counts.values()),
        samples=samples,
        greedy=config.eval.temperature == 0,
        sizes=[informative(counts, samples, size) for size in sorted({*GROUP_SIZES, group})],
        group=group,
        came=fmean(came) if came else None,
        steps=len(came),
    )
