"""The attempts of a run as its page lists them: from which step to which, how each ended, what is still current; and
the checkpoints that they cut: which can be resumed from, where they lie, which were removed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from cohort.nodes.services import nodes_here
from cohort.runs.models import Attempt, Checkpoint, EvalResult, Run, StepMetric
from cohort.runs.transitions import current_evaluations

ATTEMPTS = 50
CHECKPOINTS = 20
"""Of one page."""


@dataclass(frozen=True)
class AttemptRow:
    attempt: Attempt
    last_step: int | None
    """Newest step that it recorded."""
    now: datetime

    @property
    def began_after(self) -> int:
        """Step of the checkpoint that it resumed from; 0 is the beginning."""
        return self.attempt.resumed_step or 0

    @property
    def first_step(self) -> int | None:
        return None if self.last_step is None else self.began_after + 1

    @property
    def took(self) -> timedelta:
        return (self.attempt.ended_at or self.now) - self.attempt.claimed_at

    @property
    def superseded(self) -> int:
        """Steps of it that a later attempt superseded."""
        through = self.attempt.valid_through
        if through is None or self.last_step is None:
            return 0
        return max(0, self.last_step - max(through, self.began_after))


def attempts_of(run: Run) -> QuerySet[Attempt]:
    """Newest first, each with its newest step; no step is read but that one."""
    newest = StepMetric.objects.filter(attempt=OuterRef("pk")).order_by("-seq").values("step")[:1]
    attempts = Attempt.objects.filter(run=run).select_related("node").defer("manifest", "outcome", "node__info")
    return attempts.annotate(last=Subquery(newest)).order_by("-fence")


def attempt_rows(attempts: Iterable[Any]) -> list[AttemptRow]:
    """Of attempts as `attempts_of` reads them."""
    now = timezone.now()
    return [AttemptRow(attempt, attempt.last, now) for attempt in attempts]


@dataclass(frozen=True)
class Successor:
    """What superseded something recorded: "superseded: attempt 2 resumed from step 40"."""

    fence: int
    from_step: int | None
    """None when that attempt began at the beginning."""

    @property
    def words(self) -> str:
        if self.from_step is None:
            return f"superseded: attempt {self.fence} began at the first step"
        if self.from_step == 0:
            return f"superseded: attempt {self.fence} resumed from before step 1"
        return f"superseded: attempt {self.fence} resumed from step {self.from_step:,}"


def superseded_evaluations(run: Run) -> QuerySet[EvalResult]:
    """Newest first."""
    every = EvalResult.objects.filter(run=run)
    superseded = every.exclude(pk__in=current_evaluations(every).values("pk"))
    return superseded.select_related("attempt").defer("attempt__manifest", "attempt__outcome").order_by("-pk")


def superseded_rows(results: Iterable[EvalResult]) -> list[dict[str, Any]]:
    """Each with its successor; one query for each."""
    return [
        {"result": row, "successor": successor(row.attempt, step=None if row.phase == "after" else row.step)}
        for row in results
    ]


def successor(attempt: Attempt, *, step: int | None) -> Successor | None:
    """The attempt that superseded what `attempt` recorded at `step`; None while that is current. `step` is 0 for
    what was measured before training, and None for what was measured after it."""
    through = attempt.valid_through
    if through is None or (step is not None and step <= through):
        return None
    later = Attempt.objects.filter(run=attempt.run_id, fence__gt=attempt.fence)
    earlier = Q() if step is None else Q(resumed_step__lt=step)
    # One that has not reported where it resumes from superseded nothing, unless it began at the first step.
    taken = later.filter(
        Q(resumed_step__isnull=False) & earlier | (Q(resumed_step=None) if through < 0 else Q(pk=None))
    )
    row = taken.order_by("fence").values_list("fence", "resumed_step").first()
    assert row is not None, "only a later attempt lowers valid_through"
    return Successor(*row)


@dataclass(frozen=True)
class CheckpointRow:
    checkpoint: Checkpoint
    here: bool
    """Whether the node that wrote it is here."""

    @property
    def superseded(self) -> bool:
        through = self.checkpoint.attempt.valid_through
        return through is not None and self.checkpoint.step > through

    @property
    def size(self) -> int:
        return sum(entry["size"] for entry in self.checkpoint.files.values())

    @property
    def resumable(self) -> bool:
        """Whether an attempt may resume from it."""
        held = self.checkpoint.removed_at is None or self.checkpoint.stored_at is not None
        return held and not self.checkpoint.final and not self.superseded

    @property
    def where(self) -> str:
        """ "on node-a and stored on the platform"."""
        checkpoint, copies = self.checkpoint, []
        if checkpoint.removed_at is None:
            copies.append(f"on {checkpoint.attempt.node.name}" + ("" if self.here else ", which is not here now"))
        if checkpoint.stored_at is not None:
            copies.append("stored on the platform")
        elif checkpoint.requested_at is not None:
            copies.append("on its way to the platform")
        return " and ".join(copies)

    @property
    def reachable(self) -> bool:
        """Whether an attempt that began now could have it."""
        return self.checkpoint.stored_at is not None or (self.checkpoint.removed_at is None and self.here)


def checkpoints_of(run: Run, *, every: bool = False) -> QuerySet[Checkpoint]:
    """The run's checkpoints, newest attempt and step first: those that are held, and with `every` those that made
    room for newer ones as well."""
    checkpoints = Checkpoint.objects.filter(run=run)
    held = checkpoints.filter(Q(removed_at=None) | Q(stored_at__isnull=False))
    return (checkpoints if every else held).select_related("attempt__node").order_by("-attempt__fence", "-step", "-pk")


def checkpoint_rows(checkpoints: Iterable[Checkpoint]) -> list[CheckpointRow]:
    """With where each lies."""
    here = set(nodes_here().values_list("pk", flat=True))
    return [CheckpointRow(checkpoint, checkpoint.attempt.node_id in here) for checkpoint in checkpoints]
