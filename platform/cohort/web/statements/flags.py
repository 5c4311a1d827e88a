"""A run's monitors beside what people said of them, for the page of statements."""

from dataclasses import dataclass

from cohort.evaluations.cache import suites_cached
from cohort.records.models import Statement
from cohort.records.sections.comparisons_facts import comparisons
from cohort.records.sections.monitor_text import FLAG_WORDS
from cohort.records.sections.monitors import watched
from cohort.records.statements.questions import override_field
from cohort.records.statements.selectors import newest_statements
from cohort.runs.models import Run
from grpo_core.config.run import RunConfig
from grpo_core.records.monitors import Flag


@dataclass(frozen=True)
class FlagRow:
    flag: Flag
    field: str
    override: Statement | None

    @property
    def text(self) -> str:
        """What was found; why nothing could be, without the words that stand before it as a badge."""
        return self.flag.text.removeprefix("not computed: ")

    @property
    def label(self) -> str:
        return FLAG_WORDS[self.flag.name]


def flag_rows(run: Run) -> list[FlagRow]:
    """Raised ones first; none while no step is trained."""
    if not run.step:
        return []
    told = newest_statements(run)
    config = RunConfig.from_whole(run.config, source=f"run {run.pk}")
    found = watched(run, comparisons(suites_cached(run, config)))
    rows = [FlagRow(flag, override_field(flag.name), told.get(override_field(flag.name))) for flag in found]
    return sorted(rows, key=lambda row: (not row.flag.raised, row.flag.raised is None))
