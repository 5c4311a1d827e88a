"""Sends records, the log and checkpoints to the platform; checkpoints in a thread, so that another node can resume.

Nothing waits for it while the trainer runs: it is niced, has its own connections, and takes the newest checkpoint
only now and then. What arrived stays, so a file is continued where it broke off. Final weights are sent where a person
requested them (`requested`).
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import IO

import zstandard
from pydantic import ValidationError

from grpo_core.files.spool import Spooled, SpoolReader
from grpo_core.protocol.messages import LogReply, UploadReply
from grpo_core.records.types import ENVELOPE, CheckpointManifest, SampledDataset, TokenArrays
from worker.platform_client.client import AttemptLink, Meanwhile, Refused, Unreachable

log = logging.getLogger(__name__)

# Ships a spool to the platform, in order, and deletes what the platform holds.
#
# Sends the records' JSON as the trainer wrote it; parses only those that name files.


class RecordsLost(Exception):
    """The platform holds fewer records than it had acknowledged; what is missing has been deleted here."""


class Shipper:
    def __init__(self, link: AttemptLink, spool: Path) -> None:
        self._link = link
        self._reader = SpoolReader(spool)
        self._pending: list[Spooled] = []
        self._compressor = zstandard.ZstdCompressor(level=3)
        self.read_seq = 0
        """The newest record in the spool."""
        self.acked_seq = 0
        self.checkpoints: list[CheckpointManifest] = []
        """Those whose records the platform holds, oldest first; the reader takes them out."""
        self.files: list[TokenArrays | SampledDataset] = []
        """As `checkpoints`."""

    def ship(self, meanwhile: Meanwhile) -> bool:
        """Send one batch; False when there is nothing to send. `meanwhile` is called while it is on its way.

        What could not be sent stays and is sent next time. Raises PlatformError, RunDirError for a corrupt spool,
        RecordsLost.
        """
        if not self._pending:
            self._pending = self._reader.read_new()
        if not self._pending:
            return False
        first, self.read_seq = self._pending[0].seq, self._pending[-1].seq
        lines = b"".join(record.body + b"\n" for record in self._pending)
        acked = self._link.records(self._compressor.compress(lines), meanwhile=meanwhile).acked_seq
        if acked < first:
            raise RecordsLost(f"records from {acked + 1} to {first} were acknowledged or sent, and are not held")
        self.acked_seq = acked
        acked_records = [record for record in self._pending if record.seq <= acked]
        for body in filter(None, map(_with_files, acked_records)):
            if isinstance(body, CheckpointManifest):
                self.checkpoints.append(body)
            elif isinstance(body, TokenArrays | SampledDataset):
                self.files.append(body)
        self._pending = [record for record in self._pending if record.seq > acked]
        self._reader.drop_through(acked)
        return True


_NAMING = (b'"kind":"checkpoint"', b'"kind":"tokens"', b'"kind":"dataset"')
"""In the records that name files to send."""


def _with_files(record: Spooled) -> CheckpointManifest | TokenArrays | SampledDataset | None:
    """A record that names files to send."""
    if not any(kind in record.body for kind in _NAMING):
        return None
    try:
        body = ENVELOPE.validate_json(record.body).record
    except ValidationError:
        return None  # of another version; the platform has taken it, and only the platform needs its meaning
    return body if isinstance(body, CheckpointManifest | TokenArrays | SampledDataset) else None


LOG_BYTES = 256 * 1024
"""Most of the log that one call sends."""
_LOG_SECONDS = 1.0
"""Between two calls, unless much is waiting."""
_LOG_PAUSE = 10.0
"""After a call that had no answer."""


class LogShipper:
    """Sends what the trainer prints. A log that cannot be sent is no reason to end a run: it stays in `log.txt`."""

    def __init__(self, link: AttemptLink, file: Path, *, run_id: int) -> None:
        self._link, self._file, self._run_id = link, file, run_id
        self._offset = 0
        self._next = 0.0
        self._over = False
        """Nothing more is sent: the platform holds as much as it stores, or refused."""

    def ship(self, meanwhile: Meanwhile, *, at_once: bool = False) -> bool:
        """Send a part that is due; whether one was sent. `meanwhile` is called while it is on its way. Raises Refused
        when the attempt is another worker's."""
        if self._over or (time.monotonic() < self._next and not at_once):
            return False
        part = self._read()
        if not part:
            return False
        try:
            reply = self._send(part, meanwhile)
        except Unreachable as error:
            log.warning("run %s: its log is sent later: %s", self._run_id, error)
            self._next = time.monotonic() + _LOG_PAUSE
            return False
        except Refused as refused:
            if refused.disowned:
                raise
            log.warning("run %s: its log stays here: %s", self._run_id, refused)
            self._over = True
            return False
        self._offset, self._over = reply.received, reply.full
        self._next = time.monotonic() + (0.0 if len(part) == LOG_BYTES else _LOG_SECONDS)
        return True

    def _send(self, part: bytes, meanwhile: Meanwhile) -> LogReply:
        try:
            return self._link.log(offset=self._offset, part=part, meanwhile=meanwhile)
        except Refused as refused:
            if refused.code != "wrong_offset":
                raise
            return self._link.log(offset=0, part=b"", meanwhile=meanwhile)  # the answer to the last part was lost

    def _read(self) -> bytes:
        try:
            with self._file.open("rb") as handle:
                handle.seek(self._offset)
                return handle.read(LOG_BYTES)
        except FileNotFoundError:
            return b""


PART_BYTES = 8 * 1024 * 1024
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_RESTARTS = 2
"""How often a file that arrived wrong is sent again before its checkpoint is given up."""


@dataclass(eq=False)
class Uploader:
    """Sends the newest checkpoint at most every `every` seconds; 0 means never, not at the end either."""

    link: AttemptLink
    folder: Path
    _: KW_ONLY
    every: float
    run_id: int

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._newest: CheckpointManifest | None = None
        self._settled: CheckpointManifest | None = None
        """The newest that is on the platform, or cannot get there."""
        self._hurry = False
        self._over = False
        self._thread: threading.Thread | None = None

    def offer(self, checkpoint: CheckpointManifest) -> None:
        """A checkpoint whose record the platform holds."""
        if checkpoint.final or self.every <= 0:
            return
        with self._wake:
            self._newest = checkpoint
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
            self._thread.start()

    def hurry(self) -> None:
        """Send the newest one now: the attempt ends."""
        with self._wake:
            self._hurry = True
            self._wake.notify_all()

    @property
    def settled(self) -> bool:
        """Whether the newest checkpoint is on the platform, or was given up, which is logged."""
        with self._wake:
            return self._newest is self._settled

    @property
    def busy(self) -> bool:
        """Whether the newest checkpoint is still on its way."""
        with self._wake:
            return self._newest is not self._settled and not self._over

    def close(self) -> None:
        """Stop after the part in hand, without waiting for it."""
        with self._wake:
            self._over = True
            self._wake.notify_all()
        if self._thread is None:
            self.link.close()

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            while (checkpoint := self._next()) is not None:
                try:
                    sent = self._send(checkpoint)
                except Refused as refused:
                    log.warning("run %s: no checkpoints are sent any more: %s", self.run_id, refused)
                    return
                except Exception:  # a defect of ours, which must not keep this checkpoint and all later ones here
                    log.exception("run %s: checkpoint of step %s not sent, tried again", self.run_id, checkpoint.step)
                    with self._wake:
                        self._wake.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _SHORTEST_PAUSE
                if sent:
                    with self._wake:
                        self._settled = checkpoint
        finally:
            with self._wake:
                self._over = True
            self.link.close()

    def _next(self) -> CheckpointManifest | None:
        """The newest checkpoint, when its time has come; None when there will be none."""
        earliest = time.monotonic() + self.every
        with self._wake:
            while not self._over:
                wait = None if self._newest is self._settled else earliest - time.monotonic()
                if wait is not None and (self._hurry or wait <= 0):
                    return self._newest
                self._wake.wait(wait)
        return None

    def _send(self, checkpoint: CheckpointManifest) -> bool:
        """False when it was given up for a newer one or for the end. Raises Refused when the attempt is not ours."""
        began = time.monotonic()
        try:
            for name, entry in sorted(checkpoint.files.items()):
                if not self._send_file(self.folder / checkpoint.path / name, entry.sha256, checkpoint):
                    return False
        except FileNotFoundError:
            log.info("run %s: checkpoint of step %s made room before it was sent", self.run_id, checkpoint.step)
        except (OSError, Refused) as error:
            if isinstance(error, Refused) and error.disowned:
                raise
            log.warning("run %s: checkpoint of step %s is not sent: %s", self.run_id, checkpoint.step, error)
        else:
            spent = time.monotonic() - began
            log.info("run %s: checkpoint of step %s is on the platform (%.1f s)", self.run_id, checkpoint.step, spent)
        return True

    def _send_file(self, file: Path, sha256: str, checkpoint: CheckpointManifest) -> bool:
        def send(offset: int, part: bytes) -> UploadReply:
            return self.link.upload(sha256, offset=offset, part=part)

        def wait(seconds: float) -> None:
            with self._wake:
                self._wake.wait(seconds)

        return send_file(file, send, over=lambda: self._given_up(checkpoint), wait=wait, what=f"run {self.run_id}")

    def _given_up(self, checkpoint: CheckpointManifest) -> bool:
        """A newer checkpoint is worth more once the end is near; before, what was begun is done first."""
        with self._wake:
            return self._over or (self._hurry and self._newest is not checkpoint)


def send_file(
    file: Path,
    send: Callable[[int, bytes], UploadReply],
    *,
    over: Callable[[], bool],
    wait: Callable[[float], object],
    what: str,
) -> bool:
    """Send a file in parts from where the platform has it; False once `over`. `what`: whose it is, in the log. Raises
    OSError, and Refused but for what is mended by beginning anew."""
    offset: int | None = None  # unknown: an empty part asks
    pause, restarts = _SHORTEST_PAUSE, 0
    with file.open("rb") as handle:
        while not over():
            try:
                reply = send(offset or 0, _part(handle, offset))
            except Unreachable as error:
                log.warning("%s: not sent, tried again: %s", what, error)
            except Refused as refused:
                restarts += refused.code == "bad_file"
                if refused.code not in ("wrong_offset", "bad_file") or restarts > _RESTARTS:
                    raise
            else:
                if reply.done:
                    return True
                offset, pause = reply.received, _SHORTEST_PAUSE
                continue
            wait(pause)
            offset, pause = None, min(2 * pause, _LONGEST_PAUSE)
    return False


def _part(handle: IO[bytes], offset: int | None) -> bytes:
    if offset is None:
        return b""
    handle.seek(offset)
    part = handle.read(PART_BYTES)
    if not part:
        raise OSError(f"{handle.name} is shorter than its manifest says")
    return part
