"""Files of checkpoints in the platform's artifacts.

A file is kept by its SHA-256, once a run, as the parts it came in: `checkpoints/run-<id>/<sha256>/<offset>`. A part is
taken at the byte where the former ended and nowhere else, under a lock on the file's row, so a call that is repeated
or cut never leaves a gap. Only when the last byte is there and the digest of all of them is right does the file count.
"""

import hashlib
import re
from collections.abc import Iterator

from django.db import transaction
from django.utils import timezone

from cohort.base import artifacts
from cohort.base.storable import Refused
from cohort.runs.models import CheckpointFile, SentFile

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


def stored_file(*, run_id: int, sha256: str) -> tuple[int, Iterator[bytes]] | None:
    """Size and bytes of a checkpoint's file that the platform holds for the run; None when it holds none.

    Raises FileMissing.
    """
    if not _SHA256.fullmatch(sha256):
        return None
    file = CheckpointFile.objects.filter(run_id=run_id, sha256=sha256, done_at__isnull=False).first()
    if file is None:
        return None
    keys = part_keys(file)
    if keys is None:
        raise FileMissing(f"the platform's artifacts no longer hold {sha256} of run {run_id} whole")
    return file.size, (chunk for key in keys for chunk in artifacts.read_chunks(key))


def take_part(run_id: int, sha256: str, size: int, offset: int | None, body: bytes) -> CheckpointFile:
    """The file's row with the part taken. Raises WrongOffset and BadFile."""
    # In a separate transaction: a row that others can see is there before the first byte (see `_sweep`).
    CheckpointFile.objects.get_or_create(run_id=run_id, sha256=sha256, defaults={"size": size})
    with transaction.atomic():
        file = CheckpointFile.objects.select_for_update().filter(run_id=run_id, sha256=sha256).first()
        if file is None:
            raise WrongOffset("what was held of this file has just been removed; ask again by an empty part")
        fault = append_part(file, offset, body) if file.done_at is None else ""
    if fault:
        raise BadFile(fault)
    return file


def require_digest(sha256: str) -> None:
    """Raises UnknownFile."""
    if not _SHA256.fullmatch(sha256):
        raise UnknownFile(f"{sha256!r} is not a SHA-256 of 64 hex digits")


def checked_size(sha256: str, size: int) -> int:
    """The announced size. Raises BadFile for one that no file has."""
    if not 0 <= size <= MAX_FILE_BYTES:
        raise BadFile(f"{sha256} was announced with {size} bytes; a file has 0 to {MAX_FILE_BYTES}")
    return size


def append_part(file: SentFile, offset: int | None, body: bytes) -> str:
    """Store the part of a locked file, and check the file when it is whole. Returns what is wrong with it, if it is.
    Raises WrongOffset."""
    if body and offset != file.received:
        raise WrongOffset(f"the next part begins at byte {file.received}; this one came for byte {offset}")
    end = file.received + len(body)
    if end > file.size:
        return _discard(file, f"the part ends at byte {end}, and {file.sha256} was announced with {file.size} bytes")
    if body:
        artifacts.put(f"{file.folder}/{file.received:020d}", [body])
        file.received = end
    if end == file.size:
        keys = part_keys(file)
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
        file.done_at = timezone.now()
    file.save(update_fields=["received", "done_at"])
    return ""


def _discard(file: SentFile, fault: str) -> str:
    artifacts.remove_folder(file.folder)
    file.received = 0
    file.save(update_fields=["received"])
    return f"{fault}. Nothing of it is kept; it can be sent anew from its first byte."


def part_keys(file: SentFile) -> list[str] | None:
    """Keys of a whole file's parts in order; None unless they lie end to end and make up its size."""
    keys, reached = [], 0
    for name, size in sorted(artifacts.sizes(file.folder).items()):
        if int(name) != reached:
            return None
        keys.append(f"{file.folder}/{name}")
        reached += size
    return keys if reached == file.size else None


def run_folder(run_id: int) -> str:
    return f"checkpoints/run-{run_id}"
