"""Checkpoint files that a worker sends, so that another node can resume from them, and that the next attempt fetches;
and those that a person requested, which the node sends whenever it is there.

How a file is kept is in `stored_files`. Attempt and run stay unlocked while bytes move, so that beats and records pass;
what a worker sends is stored under its digest alone, so one that has lost its lease meanwhile can damage nothing.
"""

from typing import Any

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from cohort.base import artifacts
from cohort.nodes import leases
from cohort.nodes.models import Node
from cohort.runs.attempts import attempt_lock
from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run
from cohort.runs.stored_files import UnknownFile, checked_size, require_digest, run_folder, take_part
from cohort.runs.transitions import current_rows, run_event, run_lock
from grpo_core.protocol.messages import RequestedCheckpoint, UploadReply
from grpo_core.records.types import FileEntry

KEEP = 2
"""Newest checkpoints of a run that stay on the platform; the best and those that a person pinned stay as well."""


def checkpoint_part(*, attempt: Attempt, fence: int, sha256: str, offset: int | None, body: bytes) -> UploadReply:
    """Append `body` to the file at byte `offset`; an empty body changes nothing and asks how far it is.

    The call with the last byte returns when the whole file has been read and checked. Raises StaleFence, UnknownFile,
    WrongOffset and BadFile.
    """
    leases.require_current(attempt, fence)
    file = take_part(attempt.run_id, sha256, _announced(attempt, sha256), offset, body)
    if file.done_at is not None:
        _complete(attempt, fence, sha256)
    return UploadReply(received=file.received, done=file.done_at is not None)


def requested_checkpoints(*, node: Node) -> list[RequestedCheckpoint]:
    """Those that people requested of this node, the oldest request first."""
    rows = Checkpoint.objects.filter(requested_at__isnull=False, attempt__node=node).select_related("attempt")
    return [
        RequestedCheckpoint(
            id=row.pk, run_id=row.run_id, fence=row.attempt.fence, path=row.path, files=_entries(row.files)
        )
        for row in rows.order_by("requested_at", "pk")
    ]


def requested_part(*, node: Node, checkpoint_id: int, sha256: str, offset: int | None, body: bytes) -> UploadReply:
    """As `checkpoint_part`, of a checkpoint that was requested of the node. Raises UnknownFile, WrongOffset and
    BadFile."""
    checkpoint = _requested(node, checkpoint_id)
    sizes = {entry["sha256"]: entry["size"] for entry in checkpoint.files.values()}
    if sha256 not in sizes:
        raise UnknownFile(f"{sha256} is in no checkpoint that was requested of this node")
    file = take_part(checkpoint.run_id, sha256, checked_size(sha256, sizes[sha256]), offset, body)
    if file.done_at is not None:
        _complete_requested(checkpoint, node)
    return UploadReply(received=file.received, done=file.done_at is not None)


@transaction.atomic
def requested_unavailable(*, node: Node, checkpoint_id: int, reason: str, removed: bool) -> None:
    """The node cannot send what was requested of it; `removed`: it has it no longer. Raises UnknownFile."""
    checkpoint = _requested(node, checkpoint_id)
    run_lock(run=checkpoint.run)
    changed = {"requested_at": None} | ({"removed_at": Now()} if removed else {})
    Checkpoint.objects.filter(pk=checkpoint.pk).update(**changed)
    words = f"The checkpoint at step {checkpoint.step} cannot be had from {node.name}: {reason}"
    data = {"checkpoint": checkpoint.pk, "step": checkpoint.step}
    run_event(run=checkpoint.run, actor=f"node:{node.name}", kind="checkpoint_unavailable", message=words, data=data)


def _announced(attempt: Attempt, sha256: str) -> int:
    """Size of the file by the newest checkpoint of the attempt that has it; final weights are not taken."""
    require_digest(sha256)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT file.value ->> 'size' FROM runs_checkpoint AS c, jsonb_each(c.files) AS file "
            "WHERE c.attempt_id = %s AND NOT c.final AND file.value ->> 'sha256' = %s ORDER BY c.seq DESC LIMIT 1",
            [attempt.pk, sha256],
        )
        row = cursor.fetchone()
    if row is None:
        raise UnknownFile(f"{sha256} is in no checkpoint that this attempt has registered")
    return checked_size(sha256, int(row[0]))


# ---------------------------------------------------------------------- whole checkpoints


def _requested(node: Node, checkpoint_id: int) -> Checkpoint:
    """Raises UnknownFile."""
    rows = Checkpoint.objects.filter(requested_at__isnull=False, attempt__node=node).select_related("run__project")
    checkpoint = rows.filter(pk=checkpoint_id).first()
    if checkpoint is None:
        raise UnknownFile(f"checkpoint {checkpoint_id} is not requested of this node")
    return checkpoint


def _entries(files: dict[str, Any]) -> dict[str, FileEntry]:
    return {name: FileEntry(size=entry["size"], sha256=entry["sha256"]) for name, entry in files.items()}


@transaction.atomic
def _complete_requested(checkpoint: Checkpoint, node: Node) -> None:
    """Mark the requested checkpoint as stored once every file of it is held."""
    run_lock(run=checkpoint.run)
    checkpoint.refresh_from_db(fields=["requested_at", "stored_at"])
    digests = {entry["sha256"] for entry in checkpoint.files.values()}
    held = CheckpointFile.objects.filter(run=checkpoint.run, sha256__in=digests, done_at__isnull=False).count()
    if checkpoint.stored_at is not None or checkpoint.requested_at is None or held < len(digests):
        return
    Checkpoint.objects.filter(pk=checkpoint.pk).update(stored_at=Now(), requested_at=None)
    size = sum(entry["size"] for entry in checkpoint.files.values())
    what = "The final weights are" if checkpoint.final else f"The checkpoint at step {checkpoint.step} is"
    run_event(
        run=checkpoint.run,
        actor=f"node:{node.name}",
        kind="checkpoint_stored",
        message=f"{what} on the platform, as requested",
        data={"checkpoint": checkpoint.pk, "step": checkpoint.step, "bytes": size},
    )


@transaction.atomic
def _complete(attempt: Attempt, fence: int, sha256: str) -> None:
    """Mark the attempt's checkpoints that have this file and of which now every file is held. Raises StaleFence."""
    if not _whole(attempt, sha256):
        return
    attempt_lock(attempt=attempt, fence=fence)
    checkpoints = Checkpoint.objects.filter(pk__in=_whole(attempt, sha256)).order_by("step")
    for checkpoint in checkpoints:
        Checkpoint.objects.filter(pk=checkpoint.pk).update(stored_at=Now(), requested_at=None)
        size = sum(entry["size"] for entry in checkpoint.files.values())
        run_event(
            run=attempt.run,
            actor=f"node:{attempt.node.name}",
            kind="checkpoint_stored",
            message=f"The checkpoint at step {checkpoint.step} is on the platform: any node can resume from it",
            data={"checkpoint": checkpoint.pk, "step": checkpoint.step, "fence": fence, "bytes": size},
        )
    if checkpoints:
        _trim(attempt.run)


def _whole(attempt: Attempt, sha256: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.id FROM runs_checkpoint AS c WHERE c.attempt_id = %s AND NOT c.final AND c.stored_at IS NULL "
            "AND EXISTS (SELECT FROM jsonb_each(c.files) AS file WHERE file.value ->> 'sha256' = %s) "
            "AND NOT EXISTS (SELECT FROM jsonb_each(c.files) AS file WHERE file.value ->> 'sha256' NOT IN "
            "(SELECT sha256 FROM runs_checkpointfile WHERE run_id = c.run_id AND done_at IS NOT NULL))",
            [attempt.pk, sha256],
        )
        return [pk for (pk,) in cursor.fetchall()]


def _trim(run: Run) -> None:
    """Remove the stored checkpoints that newer ones made superfluous, and the files that only those had."""
    stored = Checkpoint.objects.filter(run=run, stored_at__isnull=False)
    newest = list(
        current_rows(stored.filter(final=False)).order_by("-step", "-attempt__fence").values_list("pk", "step")[:KEEP]
    )
    kept = Q(pk__in=[pk for pk, _ in newest]) | Q(pinned=True) | Q(pk__in=current_rows(stored.filter(best=True)))
    kept |= Q(final=True)  # somebody requested them
    stored.exclude(kept).update(stored_at=None)
    # A checkpoint being uploaded may rely on files that are here already.
    arriving = Q(stored_at=None, removed_at=None, final=False, step__gt=max((step for _, step in newest), default=-1))
    arriving |= Q(requested_at__isnull=False)
    rows = Checkpoint.objects.filter(Q(stored_at__isnull=False) | arriving, run=run).values_list("files", flat=True)
    needed = {entry["sha256"] for files in rows for entry in files.values()}
    CheckpointFile.objects.filter(run=run).exclude(sha256__in=needed).delete()
    transaction.on_commit(lambda: _sweep(run.pk))


def _sweep(run_id: int) -> None:
    """Remove the files that have no row. Folders are listed before rows, so that a new one is not removed."""
    there = artifacts.folders(run_folder(run_id))
    rows = set(CheckpointFile.objects.filter(run_id=run_id).values_list("sha256", flat=True))
    for sha256 in there:
        if sha256 not in rows:
            artifacts.remove_folder(f"{run_folder(run_id)}/{sha256}")
