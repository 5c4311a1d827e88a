"""One class owns the layout of a run's folder; nothing else builds paths into it.

    config.yaml        the config as given
    manifest.json      code, versions, device, seeds and data digests of the run
    events.jsonl  metrics.jsonl          one record a line, to read with any tool
    samples/step-000001.jsonl            kept groups
    commitments.jsonl                    a salted hash of every completion, step by step
    evals/before.jsonl  evals/during.jsonl  evals/after.jsonl
    checkpoints/step-000040/             all that training needs to continue after step 40 (docs/checkpoints.md)
    checkpoints/final/                   weights, as transformers and vLLM load them
    checkpoints/pinned.json              steps whose checkpoints a person wants kept, written by the worker
    dataset/rows.jsonl  dataset/dataset.json     what a run of kind sample kept, and where it came from
    log.txt            what the trainer printed
    vllm.log           what a vLLM server of the run printed
    estimate.json      what the run was expected to cost, where `grpo train --estimate` was given it
    progress.json      how far it is inside its phase, by now
    outcome.json       how it ended; there is none while it runs
    superseded/1/      what was in these files before a resume rewound the run to an earlier step
    spool/             the same records framed for shipping, deleted once the platform has them (only with --spool)
    .reserve           room set aside, so that a full disk still takes the outcome

Writing: `append` any number of records, then `commit`, which makes them durable (fsync): the readable files first, all
of them or, when the disk is full, none; then the spool, record by record in order, because what a reader may have seen
there is never withdrawn. The spool is read by `grpo_core.files.spool`.
"""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from grpo_core.errors import DiskFullError, GrpoError, RunDirError
from grpo_core.files.disk import append_all, append_each, fsync, raise_when_full
from grpo_core.files.spool import frame, spool_bytes
from grpo_core.records import types as records

SEGMENT_BYTES = 8 * 1024 * 1024
RESERVE_BYTES = 1024 * 1024


class RunDir:
    """A run's folder, opened for writing by one trainer."""

    def __init__(self, path: Path, *, spool: bool = False, spool_cap: int | None = None) -> None:
        """`spool_cap`: once the spool holds more bytes, groups go to their readable files only."""
        self.path = path
        self.config_file = path / "config.yaml"
        self.outcome_file = path / "outcome.json"
        self.log_file = path / "log.txt"
        self.progress_file = path / "progress.json"
        self.spool_folder = path / "spool"
        self.checkpoints = path / "checkpoints"
        self._estimate_file = path / "estimate.json"
        self._reserve = path / ".reserve"
        self._spool = spool
        self._cap = spool_cap
        self.seq = 0
        """Of the newest record."""
        self._pending: dict[Path, list[bytes]] = {}
        """Lines for the readable files, appended since the last commit."""
        self._frames: dict[Path, list[bytes]] = {}
        """For the spool, by segment: one frame for each of the newest seqs, without a gap."""
        self._held: list[records.Record] | None = None
        """Of a folder that was reopened: what is to be written once it is sure that the run continues in it."""
        self._config: str | None = None
        """The same of its config.yaml."""
        self._estimate: object = None
        """The same of its estimate.json."""
        self._segment: Path | None = None
        self._segment_bytes = 0
        self._spooled: int | None = None
        """Bytes in the spool at the last look, of this commit."""
        self._dropped: list[int] = []
        """Steps of the groups that the spool had no room for, one entry a group."""
        self._lock: int | None = None
        self._writing = threading.RLock()
        """The watchdog writes from its own thread."""

    @classmethod
    def create(cls, path: Path, *, spool: bool = False, spool_cap: int | None = None) -> Self:
        """Take a folder that holds no run yet. Files that the worker put there (inputs/, config.yaml) may exist."""
        for name in ("outcome.json", "manifest.json", "events.jsonl", "metrics.jsonl", "spool"):
            if (path / name).exists():
                raise RunDirError(
                    f"{path} already holds a run ({name} is there); give an empty folder with --out, "
                    "or continue with that run by --resume"
                )
        run_dir = cls(path, spool=spool, spool_cap=spool_cap)
        run_dir._take()
        run_dir._make_parts()
        return run_dir

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Take the folder of a run that is to continue. It stays as it is, whatever is appended or committed, until
        `continue_after`: an attempt that is refused leaves nothing behind. Raises RunDirError when it holds no run, or
        a worker's."""
        if not any((path / name).exists() for name in ("manifest.json", "events.jsonl")):
            raise RunDirError(f"{path} holds no run to continue with; leave --resume out to start one")
        if (path / "spool").exists():
            raise RunDirError(
                f"{path} belongs to a worker's attempt, whose records the platform has. Resume the run on its page, or "
                "continue in a folder of its own: --out NEW --resume-from CHECKPOINT"
            )
        run_dir = cls(path)
        run_dir._held = []
        run_dir._take()
        return run_dir

    def _take(self) -> None:
        """Make sure that no other trainer writes here."""
        try:
            with raise_when_full(self.path, "a run"):
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(f"another trainer is at work in {self.path}; wait for its end, or stop it") from None
        except OSError as error:
            raise RunDirError(f"cannot write to {self.path}: {error.strerror}") from None

    def _make_parts(self) -> None:
        try:
            with raise_when_full(self.path, "a run"):
                for part in ("samples", "evals", "checkpoints", *(["spool"] if self._spool else [])):
                    (self.path / part).mkdir(exist_ok=True)
                self._reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            raise RunDirError(f"cannot write to {self.path}: {error.strerror}") from None

    def token_file(self, step: int) -> Path:
        return self.path / "tokens" / f"step-{step:06d}.parquet"

    # ------------------------------------------------------------------ reading

    def finished(self) -> bool:
        """Whether the run came to its end. Raises RunDirError when outcome.json cannot be read."""
        if not self.outcome_file.exists():
            return False
        try:
            return records.Outcome.model_validate_json(self.outcome_file.read_bytes()).status == "finished"
        except ValidationError:
            raise RunDirError(f"{self.outcome_file} is not an outcome; take it away to continue all the same") from None

    def events(self) -> "Iterator[records.Record]":
        """What events.jsonl holds, in order, without what a kill or a power loss left unreadable at its end. Raises
        RunDirError for an unreadable line before others."""
        path = self.path / "events.jsonl"
        if not path.exists():
            return
        unread: int | None = None
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                try:
                    record = records.ENVELOPE.validate_json(line).record
                except ValidationError:
                    unread = unread or number
                    continue
                if unread is not None:
                    raise unreadable(path, unread)
                yield record

    # ------------------------------------------------------------------ writing

    def continue_after(self, seq: int) -> None:
        """The next record is `seq` + 1: the folder was rewound to there. From now on it is written to."""
        self.seq = seq
        held, self._held = self._held or [], None
        self._make_parts()
        if self._config is not None:
            self.write_config(self._config)
        if self._estimate is not None and not self._estimate_file.exists():
            self.write_estimate(self._estimate)
        for record in held:
            self.append(record)

    def write_config(self, text: str) -> None:
        """Keep the config as YAML."""
        if self._held is not None:
            self._config = text
            return
        self.write_text(self.config_file, text)

    def write_estimate(self, content: object) -> None:
        """Keep an estimate of the run, as JSON has it. A resumed run keeps the one it has."""
        if self._held is not None:
            self._estimate = content
            return
        self.write_json(self._estimate_file, content)

    def append(self, record: "records.Record") -> int:
        """Write one record to its readable file and, when spooling, to the spool. Returns its seq. Raises DiskFullError
        when a manifest or an outcome finds no room; the others find it out at the next commit."""
        with self._writing:
            if self._held is not None:
                self._held.append(record)
                return self.seq
            match record:
                case records.Group() if self._spool_is_full():
                    self._dropped.append(record.step)
                    self._write_readable(record)  # under the seq before it: it is not in the spool
                    return self.seq
                case records.Outcome() if self._dropped:
                    self._record_dropped()  # before it: nothing comes after the last record
            self.seq += 1
            body = self._write_readable(record)
            if self._spool:
                self._write_segment(frame(body))
            match record:
                case records.Manifest():
                    self.write_json(self.path / "manifest.json", record.model_dump(mode="json"))
                case records.Outcome():
                    self._end(record)
            return self.seq

    def commit(self) -> None:
        """Make everything appended so far durable. Raises DiskFullError: the readable files then hold all of it or
        none, the spool as much as found room; the rest is tried again at the next commit."""
        with self._writing:
            if self._held is not None:
                return
            if self._dropped:  # reported with the files that hold them, so that a kill leaves no gap unreported
                self._record_dropped()
            with raise_when_full(self.path, "the run's records"):
                append_all(self._pending)
                self._pending.clear()
                while self._frames:
                    segment, frames = next(iter(self._frames.items()))
                    append_each(segment, frames)
                    del self._frames[segment]
            self._spooled = None

    def fail(self, error: GrpoError, *, steps: int) -> None:
        """The outcome of a run that ended before its trainer began; `steps` were planned."""
        self.append(
            records.Outcome(status="failed", code=error.code, message=str(error), steps_done=0, steps_planned=steps)
        )
        self.close()

    def free_reserve(self) -> None:
        """Free the room that was set aside, for the outcome on a full disk."""
        self._reserve.unlink(missing_ok=True)

    def close(self) -> None:
        if self._held is None:
            self.commit()
            self.free_reserve()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _end(self, outcome: "records.Outcome") -> None:
        """On a full disk the outcome takes the place of the records that found no room."""
        self.free_reserve()
        try:
            self.commit()
        except DiskFullError:
            self._pending.clear()  # of the frames those stay that are in the spool, where a reader may have seen them
            if waiting := sum(len(frames) for frames in self._frames.values()):
                self._segment = next(iter(self._frames))  # where room ended
                self.seq -= waiting - 1
                self._frames.clear()
                body = records.Envelope(seq=self.seq, at=datetime.now(UTC), record=outcome).model_dump_json().encode()
                self._write_segment(frame(body))
            self.commit()
        self.write_json(self.outcome_file, outcome.model_dump(mode="json"))

    @staticmethod
    def write_json(path: Path, content: object) -> None:
        """Write a small JSON file whole and durably: a reader sees the old one or the new one."""
        RunDir.write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")

    @staticmethod
    def write_text(path: Path, text: str) -> None:
        temporary = path.with_name(path.name + ".tmp")
        with raise_when_full(path.parent, path.name):
            temporary.write_text(text, encoding="utf-8")
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)

    def _readable_file(self, record: "records.Record") -> Path | None:
        match record:
            case (
                records.Event()
                | records.PhaseStarted()
                | records.Resumed()
                | records.CheckpointManifest()
                | records.CheckpointRemoved()
                | records.SampledDataset()
            ):
                return self.path / "events.jsonl"
            case records.StepMetrics():
                return self.path / "metrics.jsonl"
            case records.TokenArrays():
                return self.path / "tokens.jsonl"
            case records.Commitments():
                return self.path / "commitments.jsonl"
            case records.Group():
                return self.path / "samples" / f"step-{record.step:06d}.jsonl"
            case records.EvalItem() | records.EvalResult():
                return self.path / "evals" / f"{record.phase}.jsonl"
            case _:
                return None  # manifest.json and outcome.json hold these whole

    def _write_readable(self, record: "records.Record") -> bytes:
        """Returns the record in its envelope, as JSON."""
        body = records.Envelope(seq=self.seq, at=datetime.now(UTC), record=record).model_dump_json().encode()
        if (readable := self._readable_file(record)) is not None:
            self._pending.setdefault(readable, []).append(body + b"\n")
        return body

    def _write_segment(self, framed: bytes) -> None:
        if self._segment is None or self._segment_bytes >= SEGMENT_BYTES:
            self._segment, self._segment_bytes = self.spool_folder / f"{self.seq:010d}.log", 0
        self._segment_bytes += len(framed)
        self._frames.setdefault(self._segment, []).append(framed)

    def _spool_is_full(self) -> bool:
        """Whether groups are left out of the spool now. The worker empties it as the platform takes the records."""
        if not self._spool or self._cap is None:
            return False
        if self._spooled is None:
            self._spooled = spool_bytes(self.spool_folder)
        waiting = sum(len(part) for frames in self._frames.values() for part in frames)
        return self._spooled + waiting > self._cap

    def _record_dropped(self) -> None:
        """A gap in the samples is reported, never silent."""
        first, last, groups = min(self._dropped), max(self._dropped), len(self._dropped)
        self._dropped.clear()
        which = "1 group" if groups == 1 else f"{groups} groups"
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        message = (
            f"{which} of {steps} could not be sent: the records that wait for the platform had grown beyond "
            f"{self._cap:,} bytes. samples/ of the run directory holds all"
        )
        data = {"first_step": first, "last_step": last, "groups": groups}
        self.append(records.Event(type="samples_dropped", message=message, data=data))


def unreadable(path: Path, number: int) -> RunDirError:
    """The error to raise for line `number` (from 1) of one of the files, when readable ones come after it."""
    return RunDirError(
        f"{path} line {number} is no record and was not left by a kill, for whole ones come after it. Put the file "
        "back from a copy, or continue in a new directory: --out NEW --resume-from CHECKPOINT"
    )
