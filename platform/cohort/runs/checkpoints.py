"""Checkpoints that a run can resume from: which are offered to its next attempt, which a person wants kept, and which
of an earlier attempt only take up room.

Imports nothing of `attempts`, whose claim and beat ask here. What workers send of a checkpoint is in `uploads`.
"""

from collections.abc import Iterable

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from cohort.runs.models import Attempt, Checkpoint, Run
from cohort.runs.transitions import current_rows
from grpo_core.protocol.messages import CheckpointOffer, OldCheckpoint


def resumable(*runs: Run) -> QuerySet[Checkpoint]:
    """The runs' current checkpoints that still exist, newest first: on the node that wrote it, or on the platform.

    One that was removed from its node stays resumable while the platform holds it.
    """
    held = Q(removed_at=None) | Q(stored_at__isnull=False)
    return current_rows(Checkpoint.objects.filter(held, run__in=runs, final=False)).order_by("-step", "-attempt__fence")


def offers(run: Run) -> list[CheckpointOffer]:
    """What the run's next attempt may resume from, best first; empty when it begins at the first step.

    A checkpoint that a person chose comes first whatever became of it, and after it only older ones: an attempt that
    can have none of them fails, so that a choice never silently becomes a start from the first step.
    """
    if run.from_start:
        return []
    checkpoints = list(resumable(run).select_related("attempt"))
    chosen = run.resume_from
    if chosen is not None:
        checkpoints = [chosen, *(older for older in checkpoints if older.step < chosen.step)]
    return [
        CheckpointOffer(
            step=checkpoint.step,
            fence=checkpoint.attempt.fence,
            path=checkpoint.path,
            files=checkpoint.files,
            stored=checkpoint.stored_at is not None,
        )
        for checkpoint in checkpoints
    ]


def pinned(run: Run) -> list[int]:
    """Steps whose checkpoints stay on the node, in order."""
    rows = current_rows(Checkpoint.objects.filter(run=run, pinned=True, final=False))
    return list(rows.order_by("step").values_list("step", flat=True).distinct())


def needless(attempt: Attempt) -> list[OldCheckpoint]:
    """Unneeded checkpoints of earlier attempts on this attempt's node, once this attempt has written as many as are
    kept. The best stays while it is current, and what a person pinned stays.
    """
    if attempt.fence == 1:
        return []
    keep = Run.objects.get(pk=attempt.run_id).parsed_config.checkpoints.keep
    # By the run as well, because the index of what is still there begins with it.
    there = Checkpoint.objects.filter(run_id=attempt.run_id, removed_at=None, final=False)
    if there.filter(attempt=attempt).count() < keep:
        return []
    assert attempt.node_id is not None, "it is of a worker"
    left = there.filter(attempt__node_id=attempt.node_id, attempt__fence__lt=attempt.fence, pinned=False)
    best = current_rows(left.filter(best=True))
    rows = left.exclude(pk__in=best.values("pk")).order_by("step").values_list("attempt__fence", "path")
    return [OldCheckpoint(fence=fence, path=path) for fence, path in rows]


def removed(attempt: Attempt, checkpoints: Iterable[OldCheckpoint]) -> None:
    """The attempt's node no longer has these."""
    assert attempt.node_id is not None, "it is of a worker"
    for checkpoint in checkpoints:
        Checkpoint.objects.filter(
            run_id=attempt.run_id,
            attempt__node_id=attempt.node_id,
            attempt__fence=checkpoint.fence,
            path=checkpoint.path,
            removed_at=None,
        ).update(removed_at=Now())
