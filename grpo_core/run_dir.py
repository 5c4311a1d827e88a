"""One class owns the layout of a run's folder; nothing else builds paths into it.

    config.yaml        the config as given
    manifest.json      what the run stands on
    events.jsonl  metrics.jsonl          one record a line, to read with any tool
    samples/step-000001.jsonl            kept groups
    evals/before.jsonl  evals/after.jsonl
    checkpoints/final/                   weights, as transformers and vLLM load them
    log.txt            what the trainer printed
    outcome.json       how it ended; there is none while it runs
    spool/             the same records framed for shipping, deleted once the platform has them (only with --spool)

Writing: `append` any number of records, then `commit`, which makes them durable (fsync) and visible to a reader
together. Reading: `SpoolReader` returns only what is new and never a torn record.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Self

from google_crc32c import value as crc32c

from grpo_core import records
from grpo_core.errors import RunDirError

SEGMENT_BYTES = 8 * 1024 * 1024
_HEAD = 18  # "llllllll cccccccc " : length and CRC32C of the body, in hex


def frame(body: bytes) -> bytes:
    """Length and CRC32C in hex, the body, a newline: still one readable line of text."""
    return b"%08x %08x %s\n" % (len(body), crc32c(body), body)


def unframe(buffer: bytes, start: int) -> tuple[bytes, int] | None:
    """The body that starts at `start` and where the next one does; None when it is not there in full yet.

    Raises RunDirError when the bytes are there and wrong.
    """
    head = buffer[start : start + _HEAD]
    if len(head) < _HEAD:
        return None
    try:
        length, checksum = int(head[0:8], 16), int(head[9:17], 16)
    except ValueError:
        raise RunDirError(f"spool frame at byte {start} has no valid head: {head!r}") from None
    end = start + _HEAD + length
    if len(buffer) < end + 1:
        return None
    body = buffer[start + _HEAD : end]
    if crc32c(body) != checksum or buffer[end : end + 1] != b"\n":
        raise RunDirError(f"spool frame at byte {start} does not match its checksum")
    return body, end + 1


class RunDir:
    """A run's folder, opened for writing by one trainer."""

    def __init__(self, path: Path, *, spool: bool = False) -> None:
        self.path = path
        self._spool = spool
        self._seq = 0
        self._open: dict[Path, IO[bytes]] = {}
        self._dirty: set[Path] = set()
        self._segment: Path | None = None

    @classmethod
    def create(cls, path: Path, *, spool: bool = False) -> Self:
        """Take a folder that holds no run yet. Files that the worker laid there (inputs/, config.yaml) may stand."""
        for name in ("outcome.json", "manifest.json", "events.jsonl", "metrics.jsonl", "spool"):
            if (path / name).exists():
                raise RunDirError(f"{path} already holds a run ({name} is there); give an empty folder with --out")
        try:
            for part in ("samples", "evals", "checkpoints", *(["spool"] if spool else [])):
                (path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirError(f"cannot write to {path}: {error.strerror}") from None
        return cls(path, spool=spool)

    # ------------------------------------------------------------------ places

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def log_file(self) -> Path:
        return self.path / "log.txt"

    @property
    def spool_folder(self) -> Path:
        return self.path / "spool"

    def checkpoint_folder(self, name: str) -> Path:
        return self.path / "checkpoints" / name

    # ------------------------------------------------------------------ writing

    def append(self, record: "records.Record") -> int:
        """Write one record to its readable file and, when spooling, to the spool. Returns its seq."""
        self._seq += 1
        envelope = records.Envelope(seq=self._seq, at=datetime.now(UTC), record=record)
        body = envelope.model_dump_json().encode()
        if (readable := self._readable_file(record)) is not None:
            self._write(readable, body + b"\n")
        if self._spool:
            self._write(self._current_segment(), frame(body))
        match record:
            case records.Manifest():
                self.write_json(self.path / "manifest.json", record.model_dump(mode="json"))
            case records.Outcome():
                self.commit()
                self.write_json(self.outcome_file, record.model_dump(mode="json"))
        return self._seq

    def commit(self) -> None:
        """Make everything appended so far durable."""
        for path in self._dirty:
            handle = self._open[path]
            handle.flush()
            os.fsync(handle.fileno())
        self._dirty.clear()

    def close(self) -> None:
        self.commit()
        for handle in self._open.values():
            handle.close()
        self._open.clear()

    @staticmethod
    def write_json(path: Path, content: object) -> None:
        """Write a small file whole: a reader sees the old one or the new one."""
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(content, handle, ensure_ascii=False, indent=2)
            handle.write("\n")
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)

    def _readable_file(self, record: "records.Record") -> Path | None:
        match record:
            case records.Event() | records.PhaseStarted() | records.CheckpointManifest():
                return self.path / "events.jsonl"
            case records.StepMetrics():
                return self.path / "metrics.jsonl"
            case records.Group():
                return self.path / "samples" / f"step-{record.step:06d}.jsonl"
            case records.EvalItem() | records.EvalResult():
                return self.path / "evals" / f"{record.phase}.jsonl"
            case _:
                return None  # manifest.json and outcome.json hold these whole

    def _write(self, path: Path, line: bytes) -> None:
        handle = self._open.get(path)
        if handle is None:
            self._close_finished_samples(path)
            handle = self._open[path] = path.open("ab")
        handle.write(line)
        self._dirty.add(path)

    def _close_finished_samples(self, new: Path) -> None:
        """Sample files come one a step: keep at most the newest open."""
        if new.parent.name != "samples":
            return
        for path in [path for path in self._open if path.parent.name == "samples"]:
            handle = self._open.pop(path)
            handle.flush()
            os.fsync(handle.fileno())
            handle.close()
            self._dirty.discard(path)

    def _current_segment(self) -> Path:
        if self._segment is not None and self._open[self._segment].tell() >= SEGMENT_BYTES:
            self.commit()
            self._open.pop(self._segment).close()
            self._segment = None
        if self._segment is None:
            self._segment = self.spool_folder / f"{self._seq:010d}.log"
        return self._segment


@dataclass(frozen=True)
class Spooled:
    """One record as it lies in the spool: its seq and its JSON, ready to send as it is."""

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
        found: list[Spooled] = []
        size = 0
        for record in self._frames():
            found.append(record)
            size += len(record.body)
            if len(found) >= limit or size >= max_bytes:
                break
        return found

    def drop_through(self, seq: int) -> None:
        """Delete the segments whose records the platform all holds. The newest segment stays until it is finished."""
        segments = self._segments()
        for segment, following in pairwise(segments):
            if int(following.stem) - 1 <= seq:
                segment.unlink()

    def _segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.log")) if self.folder.is_dir() else []

    def _frames(self) -> Iterator[Spooled]:
        while True:
            if self._segment is None:
                following = [s for s in self._segments() if int(s.stem) == self._last_seq + 1]
                if not following:
                    return
                self._segment, self._offset = following[0], 0
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
            if not any(int(s.stem) == self._last_seq + 1 for s in self._segments()):
                return
            self._segment = None
