"""What only other kinds of run than GRPO have, read once when the record is made. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.catalog.models import PromptDataset
from cohort.records.sections.earlier_stages import record_of
from cohort.runs.models import Run, RunEvent
from cohort.runs.trained_rewards import preference_figures
from cohort.runs.transitions import current_steps

HELDOUT_LOSS = "heldout_loss"
"""Type of the trainer's event with the loss on held-out conversations, before training and after."""
ACCURACY = "mean_token_accuracy"


@dataclass(frozen=True)
class Teacher:
    """Who answered what is learned from."""

    run: Run
    """The sampling run."""
    manifest: dict[str, Any] | None
    """Of that run: the model that answered, as the trainer measured it."""
    seal: str
    card: str


@dataclass(frozen=True)
class StageFacts:
    heldout_loss: dict[str, dict[str, Any]]
    """phase → data of the newest event."""
    preferences: Mapping[str, Any] | None
    """Data of the newest event."""
    token_accuracy: tuple[tuple[int, float], tuple[int, float]] | None
    """(step, share) of the first and the last current step that has it."""
    teacher: Teacher | None
    written: PromptDataset | None
    """The dataset that the run sampled."""


def stage_facts(run: Run) -> StageFacts:
    return StageFacts(
        heldout_loss=heldout_loss(run),
        preferences=preference_figures([run.pk]).get(run.pk),
        token_accuracy=_token_accuracy(run),
        teacher=_teacher(run),
        written=PromptDataset.objects.filter(sampled_by=run).order_by("-pk").first(),
    )


def heldout_loss(run: Run) -> dict[str, dict[str, Any]]:
    """phase → data of the newest event: loss in nats per answer token, share of tokens right, conversations."""
    rows = RunEvent.objects.filter(run=run, kind=HELDOUT_LOSS).order_by("pk").values_list("data", flat=True)
    data = (row for row in rows if isinstance(row, Mapping))
    return {str(row["phase"]): dict(row) for row in data if "phase" in row}


def _token_accuracy(run: Run) -> tuple[tuple[int, float], tuple[int, float]] | None:
    steps = current_steps(run).filter(metrics__has_key=ACCURACY).values_list("step", f"metrics__{ACCURACY}")
    first, last = steps.first(), steps.last()
    if first is None or last is None:
        return None
    return (first[0], float(first[1])), (last[0], float(last[1]))


def _teacher(run: Run) -> Teacher | None:
    """Of the dataset that the run learns from, where a run sampled it."""
    sampled_by = run.dataset.sampled_by if run.dataset_id is not None else None
    return None if sampled_by is None else Teacher(sampled_by, sampled_by.newest_manifest(), *record_of(sampled_by))
