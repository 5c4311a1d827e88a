"""Checkpoints of a run as its pages show them: which can be resumed from, where they lie, which were removed."""

from dataclasses import dataclass

from django.db.models import Q, QuerySet

from cohort.nodes.services import nodes_here
from cohort.runs.checkpoints import resumable
from cohort.runs.models import Checkpoint, Run

SHOWN = 20


@dataclass(frozen=True)
class CheckpointRow:
    checkpoint: Checkpoint
    here: bool
    """Whether the node that wrote it is here."""
    superseded: bool

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
        return " and ".join(copies)

    @property
    def reachable(self) -> bool:
        """Whether an attempt that began now could have it."""
        return self.checkpoint.stored_at is not None or (self.checkpoint.removed_at is None and self.here)


@dataclass(frozen=True)
class CheckpointPage:
    rows: tuple[CheckpointRow, ...]
    removed: int
    """Those that were removed everywhere."""
    total: int


def resumable_rows(run: Run, *, limit: int | None = None) -> list[CheckpointRow]:
    """What the run's next attempt may resume from, newest first, with where each lies."""
    return _rows(resumable(run), limit)


def checkpoint_page(run: Run, *, every: bool = False) -> CheckpointPage:
    """The run's checkpoints, newest attempt and step first: those that are held, and with `every` those that made
    room for newer ones as well."""
    checkpoints = Checkpoint.objects.filter(run=run)
    total, held = checkpoints.count(), checkpoints.filter(Q(removed_at=None) | Q(stored_at__isnull=False))
    shown = (checkpoints if every else held).order_by("-attempt__fence", "-step", "-pk")
    return CheckpointPage(tuple(_rows(shown, None if every else SHOWN)), total - held.count(), total)


def _rows(checkpoints: QuerySet[Checkpoint], limit: int | None) -> list[CheckpointRow]:
    here = set(nodes_here().values_list("pk", flat=True))
    shown = checkpoints.select_related("attempt__node").defer("attempt__manifest", "attempt__outcome")[:limit]
    rows = []
    for checkpoint in shown:
        through = checkpoint.attempt.valid_through
        rows.append(
            CheckpointRow(
                checkpoint,
                here=checkpoint.attempt.node_id in here,
                superseded=through is not None and checkpoint.step > through,
            )
        )
    return rows
