"""What each stage's run scored on its suites, before and after it, for the pipeline's page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cohort.base.formatting import number
from cohort.evaluations.selectors import HELDOUT_TITLE
from cohort.pipelines.states import StageNow
from cohort.runs.models import EvalResult
from cohort.runs.transitions import current_evaluations
from grpo_core.config.evaluation import HELDOUT
from grpo_core.stats.unscored import scored_share


class StageScore(NamedTuple):
    suite: str
    before: float | None
    after: float | None

    @property
    def words(self) -> str:
        """Such as `heldout 12.5 % → 50 %`."""
        suite = HELDOUT_TITLE if self.suite == HELDOUT else self.suite
        return f"{suite} {_percent(self.before)} → {_percent(self.after)}"


def stage_scores(states: Mapping[str, StageNow]) -> dict[str, Sequence[StageScore]]:
    """Of each stage with a run, by its name; the suites in the order in which they were measured. One query."""
    runs = {now.run.pk: slug for slug, now in states.items() if now.run is not None}
    results = current_evaluations(EvalResult.objects.filter(run__in=runs, phase__in=("before", "after")))
    shares: dict[str, dict[str, dict[str, float | None]]] = {}
    for result in results.select_related("attempt").order_by("pk"):
        suites = shares.setdefault(runs[result.run_id], {})
        share = scored_share(result.correct, result.problems, result.errors)
        suites.setdefault(result.suite, {})[result.phase] = share
    return {
        slug: [StageScore(suite, ends.get("before"), ends.get("after")) for suite, ends in suites.items()]
        for slug, suites in shares.items()
    }


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{number(100 * share, 3)} %"
