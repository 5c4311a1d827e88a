"""Flags of a run's monitors, as the page of statements lists them."""

from typing import Any

from cohort.evaluations.selectors import suites_cached
from cohort.records.sections.history_facts import comparisons
from cohort.records.sections.monitors import FLAG_WORDS, watched
from cohort.records.statements.questions import override_field
from cohort.records.statements.services import newest_statements
from cohort.runs.models import Run


def flag_rows(run: Run) -> list[dict[str, Any]]:
    """Raised ones first; none while no step is trained. Their text is without the prefix that is shown as a badge."""
    if not run.step:
        return []
    statements = newest_statements(run)
    flags = watched(run, comparisons(suites_cached(run, run.parsed_config)))
    return [
        {
            "flag": flag,
            "field": override_field(flag.name),
            "override": statements.get(override_field(flag.name)),
            "text": flag.text.removeprefix("not computed: "),
            "label": FLAG_WORDS[flag.name],
        }
        for flag in sorted(flags, key=lambda flag: (not flag.raised, flag.raised is None))
    ]
