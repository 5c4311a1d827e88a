"""Figures of a record that a rule can bound: each declared once, with its words and where it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cohort.evidence.plain_text import percent


@dataclass(frozen=True)
class Figure:
    words: str
    path: str
    """Field of the record whose value it is read from."""
    read: Callable[[Any], float]
    """From that value."""
    show: Callable[[float], str] = percent
    most: float | None = 1.0
    """What it can be at most; None of a count. The least is 0."""


def _share(part: str, whole: str) -> Callable[[Any], float]:
    """0 of nothing is 0."""
    return lambda value: value[part] / value[whole] if value[whole] else 0.0


def _count(value: float) -> str:
    return f"{value:,.0f}"


FIGURES: dict[str, Figure] = {
    "phantom_share": Figure(
        "share of groups whose success did not vary and that still moved the weights",
        "rejected.groups",
        lambda value: value["phantom_learned_share"],
    ),
    "silent_share": Figure(
        "share of groups whose rewards were all equal or that were not scored",
        "rejected.groups",
        lambda value: (
            (value["groups_all_equal"] + value["groups_unscored"]) / value["groups"] if value["groups"] else 0.0
        ),
    ),
    "left_out_share": Figure(
        "share of completions left out of the update", "rejected.samples", _share("left_out", "of")
    ),
    "truncated_share": Figure(
        "share of completions that reached the token limit", "rejected.truncated", _share("truncated", "of")
    ),
    "not_stored_share": Figure(
        "share of sampled completions whose texts were not stored", "rejected.not_stored", _share("not_stored", "of")
    ),
    "reward_error_share": Figure(
        "share of completions that could not be scored", "reward.errors", _share("errors", "of")
    ),
    "touched_share": Figure(
        "largest share of a suite's items that overlap with the training file",
        "behaviour.benchmark_contamination",
        lambda value: max(_share("touched", "items")(suite) for suite in value.values()),
    ),
    "superseded_steps": Figure(
        "steps superseded by a later attempt", "budget.superseded", lambda value: value["steps"], _count, None
    ),
    "evaluations_not_chosen": Figure(
        "evaluations of this run's weights that the record's comparisons do not use",
        "behaviour.not_chosen",
        lambda value: value["total"],
        _count,
        None,
    ),
    "judgements_hidden": Figure(
        "people's judgements that are in no figure of the record",
        "oversight.judgements_hidden",
        lambda value: value["hidden"],
        _count,
        None,
    ),
    "training_flop": Figure(
        "estimated FLOP of the training",
        "budget.compute",
        lambda value: value["flop_estimate"],
        lambda value: f"{value:.3g} FLOP",
        None,
    ),
}
