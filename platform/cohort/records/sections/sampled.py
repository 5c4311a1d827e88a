"""What became of the completions that a run of kind `sample` drew: kept, or dropped by which filter."""

from cohort.records.answers import count, measured, not_measured, of
from cohort.records.facts import Facts
from cohort.records.schema_types import Answer
from cohort.records.sections.subject import NO_TOTALS

KEPT, DROPPED = "kept", "dropped_"
"""Of the outcome's totals: completions kept, and those that each filter dropped (grpo_core/trainer/metrics.py)."""
FILTER_WORDS = {
    "unscored": "the reward could not score",
    "empty": "without text",
    "unstorable": "with characters that no dataset holds",
    "no_verdict": "without a verdict of the success component",
    "wrong": "wrong by the success component",
    "low_reward": "with a reward below the least",
    "component": "failed by a further component",
    "unfinished": "that reached the longest length",
    "too_short": "too short",
    "too_long": "too long",
    "duplicate": "the same as an earlier one of its problem",
    "near_duplicate": "nearly the same as an earlier one of its problem",
    "over_quota": "over the most of a problem",
    "unpaired": "without a wrong one to stand above",
}
"""Filter → words, in the order in which filters apply."""
DUPLICATES = ("duplicate", "near_duplicate")


def dropped(facts: Facts) -> dict[str, float]:
    """Filter → completions that it dropped, in the filters' order; of a later trainer's filters, after them."""
    given = {name.removeprefix(DROPPED): n for name, n in facts.totals.items() if name.startswith(DROPPED)}
    known = {name: given[name] for name in FILTER_WORDS if name in given}
    return known | {name: given[name] for name in sorted(given.keys() - known.keys())}


def words_of(filters: dict[str, float]) -> str:
    return ", ".join(f"{count(n)} {FILTER_WORDS.get(name, name.replace('_', ' '))}" for name, n in filters.items() if n)


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
