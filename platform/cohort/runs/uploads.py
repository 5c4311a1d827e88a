"""Checkpoint files that a worker sends, so that another node can resume from them, and that the next attempt fetches.

A file is kept by its SHA-256, once a run, as the parts it came in: `checkpoints/run-<id>/<sha256>/<offset>`. A part is
taken at the byte where the former ended and nowhere else, under a lock on the file's row, so a call that is repeated
or cut never leaves a gap. Only when the last byte is there and the digest of all of them is right does the file count.
Attempt and run stay unlocked while bytes move, so that beats and records pass; what a worker sends is stored under its
digest alone, so one that has lost its lease meanwhile can damage nothing.
"""

import hashlib
import re
from collections.abc import Iterator

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from cohort.base import artifacts
from cohort.base.storable import Refused
from cohort.nodes import leases
from cohort.runs.attempts import attempt_lock
from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run
from cohort.runs.transitions import current_rows, run_event
from grpo_core.protocol.messages import UploadReply

KEEP = 2
"""Newest checkpoints of a run that stay on the platform; the best and those that a person pinned stay as well."""

MAX_FILE_BYTES = 1 << 50

_SHA256 = re.compile(r"[0-9a-f]{64}")


class UnknownFile(Refused, code="unknown_file"):
    """No checkpoint that the attempt registered has this file."""


class WrongOffset(Refused, code="wrong_offset"):
    """A part that does not begin where the former ended. An empty part asks where that is."""


class BadFile(Refused, code="bad_file"):
    """The file does not match the checkpoint's manifest. Nothing of it is held any more."""


class FileMissing(Refused, code="file_missing"):
    """The file counts as held, and cannot be read from the artifacts any more."""


def checkpoint_part(*, attempt: Attempt, fence: int, sha256: str, offset: int | None, body: bytes) -> UploadReply:
    """Append `body` to the file at byte `offset`; an empty body changes nothing and asks how far it is.

    The call with the last byte returns when the whole file has been read and checked. Raises StaleFence, UnknownFile,
    WrongOffset and BadFile.
    """
    leases.require_current(attempt, fence)
    size = _announced(attempt, sha256)
    # In a separate transaction: a row that others can see is there before the first byte (see `_sweep`).
    CheckpointFile.objects.get_or_create(run_id=attempt.run_id, sha256=sha256, defaults={"size": size})
    with transaction.atomic():
        file = CheckpointFile.objects.select_for_update().filter(run_id=attempt.run_id, sha256=sha256).first()
        if file is None:
            raise WrongOffset("what was held of this file has just been removed; ask again by an empty part")
        fault = _take(file, offset, body) if file.done_at is None else ""
    if fault:
        raise BadFile(fault)
    if file.done_at is not None:
        _complete(attempt, fence, sha256)
    return UploadReply(received=file.received, done=file.done_at is not None)


def checkpoint_file(*, attempt: Attempt, sha256: str) -> tuple[int, Iterator[bytes]] | None:
    """Size and bytes of a checkpoint's file that the platform holds for the attempt's run; None when it holds none.

    Raises FileMissing.
    """
    if not _SHA256.fullmatch(sha256):
        return None
    file = CheckpointFile.objects.filter(run_id=attempt.run_id, sha256=sha256, done_at__isnull=False).first()
    if file is None:
        return None
    keys = _parts(file)
    if keys is None:
        raise FileMissing(f"the platform's artifacts no longer hold {sha256} of run {attempt.run_id} whole")
    return file.size, (chunk for key in keys for chunk in artifacts.read_chunks(key))


# ---------------------------------------------------------------------- one file


def _announced(attempt: Attempt, sha256: str) -> int:
    """Size of the file by the newest checkpoint of the attempt that has it; final weights are not taken."""
    if not _SHA256.fullmatch(sha256):
        raise UnknownFile(f"{sha256!r} is not a SHA-256 of 64 hex digits")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT file.value ->> 'size' FROM runs_checkpoint AS c, jsonb_each(c.files) AS file "
            "WHERE c.attempt_id = %s AND NOT c.final AND file.value ->> 'sha256' = %s ORDER BY c.seq DESC LIMIT 1",
            [attempt.pk, sha256],
        )
        row = cursor.fetchone()
    if row is None:
        raise UnknownFile(f"{sha256} is in no checkpoint that this attempt has registered")
    size = int(row[0])
    if not 0 <= size <= MAX_FILE_BYTES:
        raise BadFile(f"{sha256} was announced with {size} bytes; a file has 0 to {MAX_FILE_BYTES}")
    return size


def _take(file: CheckpointFile, offset: int | None, body: bytes) -> str:
    """Store the part of a locked file, and check the file when it is whole. Returns what is wrong with it, if it is."""
    if body and offset != file.received:
        raise WrongOffset(f"the next part begins at byte {file.received}; this one came for byte {offset}")
    end = file.received + len(body)
    if end > file.size:
        return _discard(file, f"the part ends at byte {end}, and {file.sha256} was announced with {file.size} bytes")
    if body:
        artifacts.put(f"{_folder(file)}/{file.received:020d}", [body])
        file.received = end
    if end == file.size:
        keys = _parts(file)
        if keys is None:
            return _discard(file, f"what was stored of {file.sha256} is no longer whole on the platform")
        digest = hashlib.sha256()
        for key in keys:
            for chunk in artifacts.read_chunks(key):
                digest.update(chunk)
        if digest.hexdigest() != file.sha256:
            return _discard(
                file, f"the {file.size} bytes sent have the SHA-256 {digest.hexdigest()}, not {file.sha256}"
            )
        CheckpointFile.objects.filter(pk=file.pk).update(done_at=Now())
        file.refresh_from_db(fields=["done_at"])
    file.save(update_fields=["received"])
    return ""


def _discard(file: CheckpointFile, fault: str) -> str:
    artifacts.remove_folder(_folder(file))
    file.received = 0
    file.save(update_fields=["received"])
    return f"{fault}. Nothing of it is kept; it can be sent anew from its first byte."


def _parts(file: CheckpointFile) -> list[str] | None:
    """Keys of the file's parts in order; None unless they lie end to end and make up its size."""
    keys, reached = [], 0
    for name, size in sorted(artifacts.sizes(_folder(file)).items()):
        if int(name) != reached:
            return None
        keys.append(f"{_folder(file)}/{name}")
        reached += size
    return keys if reached == file.size else None


def _folder(file: CheckpointFile) -> str:
    return f"{_run_folder(file.run_id)}/{file.sha256}"


def _run_folder(run_id: int) -> str:
    return f"checkpoints/run-{run_id}"


# ---------------------------------------------------------------------- whole checkpoints


@transaction.atomic
def _complete(attempt: Attempt, fence: int, sha256: str) -> None:
    """Mark the attempt's checkpoints that have this file and of which now every file is held. Raises StaleFence."""
    if not _whole(attempt, sha256):
        return
    attempt_lock(attempt=attempt, fence=fence)
    checkpoints = Checkpoint.objects.filter(pk__in=_whole(attempt, sha256)).order_by("step")
    for checkpoint in checkpoints:
        Checkpoint.objects.filter(pk=checkpoint.pk).update(stored_at=Now())
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
    newest = list(current_rows(stored).order_by("-step", "-attempt__fence").values_list("pk", "step")[:KEEP])
    kept = Q(pk__in=[pk for pk, _ in newest]) | Q(pinned=True) | Q(pk__in=current_rows(stored.filter(best=True)))
    stored.exclude(kept).update(stored_at=None)
    # A checkpoint being uploaded may rely on files that are here already.
    arriving = Q(stored_at=None, removed_at=None, final=False, step__gt=max((step for _, step in newest), default=-1))
    rows = Checkpoint.objects.filter(Q(stored_at__isnull=False) | arriving, run=run).values_list("files", flat=True)
    needed = {entry["sha256"] for files in rows for entry in files.values()}
    CheckpointFile.objects.filter(run=run).exclude(sha256__in=needed).delete()
    transaction.on_commit(lambda: _sweep(run.pk))


def _sweep(run_id: int) -> None:
    """Remove the files that have no row. Folders are listed before rows, so that a new one is not removed."""
    there = artifacts.folders(_run_folder(run_id))
    rows = set(CheckpointFile.objects.filter(run_id=run_id).values_list("sha256", flat=True))
    for sha256 in there:
        if sha256 not in rows:
            artifacts.remove_folder(f"{_run_folder(run_id)}/{sha256}")
