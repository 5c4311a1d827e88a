"""What became of the completions that a run of kind `sample` drew: kept, or dropped by which filter."""

from cohort.records.answers import count, measured, not_measured, of
from cohort.records.facts import Facts
from cohort.records.schema_types import Answer
from cohort.records.sections.subject import NO_TOTALS
from grpo_core.data.rejection import FILTERS, KEPT

DROPPED = "dropped_"
"""Begins the names of the outcome's totals that say what each filter dropped (grpo_core/trainer/metrics.py)."""
DUPLICATES = ("duplicate", "near_duplicate")


def dropped(facts: Facts) -> dict[str, float]:
    """Filter → completions that it dropped, in the filters' order; of a later trainer's filters, after them."""
    given = {name.removeprefix(DROPPED): n for name, n in facts.totals.items() if name.startswith(DROPPED)}
    known = {name: given[name] for name in FILTERS if name in given}
    return known | {name: given[name] for name in sorted(given.keys() - known.keys())}


def words_of(filters: dict[str, float]) -> str:
    what = {name: what for name, (what, _) in FILTERS.items()}
    return ", ".join(f"{count(n)} {what.get(name, name.replace('_', ' '))}" for name, n in filters.items() if n)


def dropped_completions(facts: Facts) -> Answer:
    """Of all that were sampled, how many did not become a row, by the first filter that dropped each."""
    totals = facts.totals
    if not totals or KEPT not in totals:
        return not_measured(NO_TOTALS)
    filters = dropped(facts)
    left_out = sum(filters.values())
    text = f"{of(left_out, totals['samples'])} completions dropped"
    listed = words_of(filters)
    value = {"left_out": left_out, "of": totals["samples"], **filters}
    note = "Each is counted at the first filter that dropped it, so that the counts sum to what was sampled."
    return measured(value, f"{text}: {listed}" if listed else text, note=note)
