"""Every suite of a run before and after, as the record has it: items from the database, statistics by the same
functions that check a card."""

from cohort.governance.parts import Comparison
from cohort.runs.models import Run
from cohort.runs.selectors.evaluations import suites
from grpo_core.config import RunConfig


def comparisons(run: Run, config: RunConfig) -> list[Comparison]:
    """The held-out problems first, then the suites by name."""
    return [Comparison.model_validate(suite.compared) for suite in suites(run, config)]
