"""Sends the files that records name, token arrays and a sampled dataset, in the records' order, in a thread: neither
beats nor records wait for it.

What arrived stays, so a file is continued where it broke off. A file that cannot be sent is logged and stays in the
run's folder; the others still go.
"""

import logging
import os
import threading
from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from grpo_core.protocol.messages import UploadReply
from grpo_core.records.types import SampledDataset, TokenArrays
from worker.platform_client.client import AttemptLink, Refused
from worker.platform_client.uploads import send_file

RecordFile = TokenArrays | SampledDataset

log = logging.getLogger(__name__)


@dataclass(eq=False)
class FileUploader:
    """Sends the files of one attempt."""

    link: AttemptLink
    folder: Path
    _: KW_ONLY
    run_id: int
    _wake: threading.Condition = field(default_factory=threading.Condition, init=False)
    _waiting: deque[RecordFile] = field(default_factory=deque, init=False)
    """Oldest first; the one that is on its way stays until it is there."""
    _over: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def offer(self, file: RecordFile) -> None:
        """A file whose record the platform holds."""
        with self._wake:
            self._waiting.append(file)
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="record-files", daemon=True)
            self._thread.start()

    @property
    def waiting(self) -> int:
        """Files that are still to be sent; 0 when nothing more will be."""
        with self._wake:
            return 0 if self._over else len(self._waiting)

    @property
    def dataset_waiting(self) -> bool:
        """Whether one of them is the run's dataset."""
        with self._wake:
            return not self._over and any(isinstance(file, SampledDataset) for file in self._waiting)

    def close(self) -> None:
        """Stop after the part in hand, without waiting for it."""
        with self._wake:
            self._over = True
            self._wake.notify_all()
        if self._thread is None:
            self.link.close()

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            while (file := self._next()) is not None:
                try:
                    self._send(file)
                except Refused as refused:
                    log.warning("run %s: no files of records are sent any more: %s", self.run_id, refused)
                    return
                with self._wake:
                    self._waiting.popleft()
        finally:
            with self._wake:
                self._over = True
            self.link.close()

    def _next(self) -> RecordFile | None:
        with self._wake:
            while not self._over and not self._waiting:
                self._wake.wait()
            return None if self._over else self._waiting[0]

    def _send(self, file: RecordFile) -> None:
        """Raises Refused when the attempt is not ours."""

        def send(offset: int, part: bytes) -> UploadReply:
            if isinstance(file, SampledDataset):
                return self.link.upload_dataset(file.sha256, offset=offset, part=part)
            return self.link.upload_tokens(file.sha256, offset=offset, part=part)

        def wait(seconds: float) -> None:
            with self._wake:
                self._wake.wait(seconds)

        kind = "dataset" if isinstance(file, SampledDataset) else f"token arrays of step {file.step}"
        what = f"run {self.run_id}, {kind}"
        try:
            send_file(self.folder / file.path, send, over=lambda: self._over, wait=wait, what=what)
        except (OSError, Refused) as error:
            if isinstance(error, Refused) and error.disowned:
                raise
            log.warning("%s: not sent: %s", what, error)
