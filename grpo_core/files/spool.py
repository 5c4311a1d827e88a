"""A run's records framed for shipping: how a frame looks, and reading them while a trainer still writes. Loads no
torch.

`SpoolReader` returns only what is new and never a torn record. `RunDir` writes; nothing here does.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from google_crc32c import value as crc32c

from grpo_core.errors import RunDirError

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The platform takes no larger record, so a head that states one is damaged, or its record cannot be shipped."""
_HEAD = 18  # "llllllll cccccccc " : length and CRC32C of the body, in hex


def frame(body: bytes) -> bytes:
    """Length and CRC32C in hex, the body, a newline: still one readable line of text."""
    return b"%08x %08x %s\n" % (len(body), crc32c(body), body)


def unframe(buffer: bytes, start: int) -> tuple[bytes, int] | None:
    """The body that starts at `start` and where the next one does; None when it is not there in full: still being
    written, or torn by a kill.

    Raises RunDirError when the bytes are there and wrong. A body has no newline in it, so a newline before the stated
    end means that the length is wrong, and more than one torn frame would be waited for.
    """
    head = buffer[start : start + _HEAD]
    if len(head) < _HEAD:
        return None
    try:
        length, checksum = int(head[0:8], 16), int(head[9:17], 16)
    except ValueError:
        raise RunDirError(f"spool frame at byte {start} has no valid head: {head!r}") from None
    if length > MAX_BODY_BYTES:
        raise RunDirError(
            f"spool frame at byte {start} states {length} bytes, and a record has at most {MAX_BODY_BYTES}: its head "
            "is damaged, or the record is too large to be shipped"
        )
    end = start + _HEAD + length
    if len(buffer) < end + 1:
        if b"\n" in buffer[start:]:
            raise RunDirError(f"spool frame at byte {start} states {length} bytes and ends before them")
        return None
    body = buffer[start + _HEAD : end]
    if crc32c(body) != checksum or buffer[end : end + 1] != b"\n":
        raise RunDirError(f"spool frame at byte {start} does not match its checksum")
    return body, end + 1


def spool_bytes(folder: Path) -> int:
    """What waits in a spool; a segment may go away meanwhile."""
    total = 0
    for segment in folder.glob("*.log"):
        try:
            total += segment.stat().st_size
        except FileNotFoundError:
            continue
    return total


@dataclass(frozen=True)
class Spooled:
    """One record as it is in the spool: its seq and its JSON, ready to send as it is."""

    seq: int
    body: bytes


class SpoolReader:
    """Reads a spool from its beginning, in order, while a trainer still writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last_seq = 0
        self._segment: Path | None = None
        self._offset = 0

    def read_new(self, *, limit: int = 2000, max_bytes: int = 4 * 1024 * 1024) -> list[Spooled]:
        """Records not returned before, at most `limit` of them and, after the first, at most `max_bytes`.

        Raises RunDirError when a record is corrupt or a seq is missing: shipping around a hole would hide it.
        """
        records: list[Spooled] = []
        size = 0
        for record in self._frames():
            records.append(record)
            size += len(record.body)
            if len(records) >= limit or size >= max_bytes:
                break
        return records

    def drop_through(self, seq: int) -> None:
        """Delete the segments whose records the platform all holds. The newest segment stays until it is finished."""
        for segment, following in pairwise(self._segments()):
            if int(following.stem) - 1 <= seq:
                segment.unlink()
                if segment == self._segment:
                    self._segment = None  # read to its end, where a batch ended too

    def _segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.log")) if self.folder.is_dir() else []

    def _frames(self) -> Iterator[Spooled]:
        while True:
            segments = self._segments()  # before the bytes are read: a segment with one after it is finished by then
            if not segments:
                return
            if self._segment is None:
                self._segment, self._offset = self._following(segments), 0
            with self._segment.open("rb") as handle:
                handle.seek(self._offset)
                buffer = handle.read()
            start = 0
            while (taken := unframe(buffer, start)) is not None:
                body, after = taken
                seq = int(json.loads(body)["seq"])
                if seq != self._last_seq + 1:
                    raise RunDirError(f"spool {self._segment.name} jumps from record {self._last_seq} to {seq}")
                self._last_seq, self._offset = seq, self._offset + after - start
                start = after
                yield Spooled(seq, body)
            if self._segment == segments[-1]:
                return
            if start < len(buffer):
                raise RunDirError(
                    f"spool {self._segment.name} breaks off in record {self._last_seq + 1}, and others come after it"
                )
            self._segment = None

    def _following(self, segments: list[Path]) -> Path:
        """The segment that begins with the next record. Raises RunDirError when it is missing."""
        for segment in segments:
            if int(segment.stem) == self._last_seq + 1:
                return segment
        raise RunDirError(
            f"spool {self.folder} has no segment that begins with record {self._last_seq + 1}; "
            f"the newest is {segments[-1].name}"
        )
