"""Sends the checkpoints that people requested of this node, whatever else it does: in a thread next to the heartbeat,
one at a time, niced, from the run directories of attempts that may have ended long ago.
"""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from grpo_core.protocol.messages import RequestedCheckpoint, Unavailable, UploadReply
from worker.environment import Environment
from worker.platform_client.client import Platform, PlatformError, Refused
from worker.platform_client.uploads import send_file

log = logging.getLogger(__name__)


class RequestedSender:
    """Of one worker process; called with each answer to its heartbeat."""

    def __init__(self, settings: Environment, stop: threading.Event) -> None:
        self._settings, self._stop = settings, stop
        self._thread: threading.Thread | None = None

    def send(self, requested: Sequence[RequestedCheckpoint]) -> None:
        """Begin to send them, unless some are on their way."""
        if not requested or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, args=(requested,), name="requested", daemon=True)
        self._thread.start()

    def _run(self, requested: Sequence[RequestedCheckpoint]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with Platform(self._settings.url, self._settings.resolved_node_token()) as platform:
            for checkpoint in requested:
                try:
                    send_requested(checkpoint, self._settings.runs_folder, platform, self._stop)
                except PlatformError as error:  # requested again by the answer to the next heartbeat
                    log.warning("run %s: its requested checkpoint is not sent: %s", checkpoint.run_id, error)


def send_requested(checkpoint: RequestedCheckpoint, runs: Path, platform: Platform, stop: threading.Event) -> None:
    """Send every file of it, or report why that cannot be. Raises PlatformError."""
    attempt = runs / f"run-{checkpoint.run_id}" / f"attempt-{checkpoint.fence}"
    try:
        folder = _inside(attempt, checkpoint.path)
        for name, entry in sorted(checkpoint.files.items()):

            def send(offset: int, part: bytes, sha256: str = entry.sha256) -> UploadReply:
                return platform.upload_requested(checkpoint.id, sha256, offset=offset, part=part)

            file = _inside(folder, name)
            if not send_file(file, send, over=stop.is_set, wait=stop.wait, what=f"run {checkpoint.run_id}"):
                return
    except (OSError, Refused) as error:
        if isinstance(error, Refused) and error.code != "bad_file":
            raise
        removed = isinstance(error, FileNotFoundError)
        reason = "it is no longer in the run's directory" if removed else str(error)
        log.warning("run %s: %s cannot be sent: %s", checkpoint.run_id, checkpoint.path, error)
        platform.unavailable(checkpoint.id, Unavailable(reason=reason[:2000], removed=removed))
        return
    log.info("run %s: %s is on the platform, as requested", checkpoint.run_id, checkpoint.path)


def _inside(folder: Path, name: str) -> Path:
    """Raises PermissionError for a name that would lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise PermissionError(f"{name!r} is outside the run's directory")
    return folder / path
