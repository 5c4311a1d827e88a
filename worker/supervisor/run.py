"""One attempt of a run from claim to finish: start the trainer, ship its records, and never leave it running.

Only checkpoints are sent by a separate thread. While a batch of records is on its way, for minutes on a slow line,
the loop beats and minds the trainer.
"""

import logging
import os
import time
from typing import Literal

from grpo_core.errors import DiskFullError
from grpo_core.files.run_folder import RunDir
from grpo_core.files.spool import spool_bytes
from grpo_core.protocol.messages import AttemptEnd, Beat, ClaimReply, Finish
from grpo_core.runtime.cgroups import Cgroup
from worker.exit_cause import ENDS, StopCause, attempt_finish, ended_as_asked, failure
from worker.folders import resume, run_folder
from worker.folders.run_folder import Cleanup, Pins
from worker.node import facts
from worker.platform_client.client import Meanwhile, PlatformError, Refused, Unreachable
from worker.platform_client.record_files import FileUploader
from worker.platform_client.uploads import LogShipper, Shipper, Uploader
from worker.processes import orphans
from worker.processes.child import Child, GroupSurvives
from worker.supervisor.loop import Loop, Stopped, Supervisor

_SOMEBODY_WAITS: set[StopCause | None] = {"cancel", "pause", "drain", "shutdown"}
_RESUMED_ELSEWHERE: set[StopCause | None] = {"pause", "drain", "shutdown", "disk"}

log = logging.getLogger(__name__)


def run_attempt(supervisor: Supervisor, run_id: int) -> Finish | None:
    """Claim and run one attempt, of this run or of another whose turn it is. None when the attempt was taken from this
    worker on the way.

    Raises Refused when nothing can be claimed, Unreachable when the platform does not answer.
    """
    claimed = supervisor.claim(supervisor.platform.claim, run_id)
    log.info("run %s: attempt %s claimed", claimed.run_id, claimed.fence)
    return _Attempt(supervisor, claimed).run()


class _Attempt:
    def __init__(self, supervisor: Supervisor, claimed: ClaimReply) -> None:
        self._with, self._claimed = supervisor, claimed
        self._limits, self._settings = supervisor.limits, supervisor.settings
        self._name = f"run {claimed.run_id}"
        self._link = supervisor.platform.attempt(claimed)
        self._loop = Loop(
            supervisor,
            self._name,
            self._send_beat,
            interval=claimed.heartbeat_seconds,
            silence=self._limits.silence,
            grace=self._limits.grace,
        )
        self._folder = self._settings.runs_folder / f"run-{claimed.run_id}" / f"attempt-{claimed.fence}"
        self._files = RunDir(self._folder)
        self._made = False
        """Whether the folder is this attempt's."""
        self._shipper = Shipper(self._link, self._files.spool_folder)
        self._log = LogShipper(self._link, self._files.log_file, run_id=claimed.run_id)
        upload_link = supervisor.platform.upload_link(claimed)
        self._uploader = Uploader(upload_link, self._folder, every=self._settings.upload_seconds, run_id=claimed.run_id)
        file_link = supervisor.platform.upload_link(claimed)
        self._record_files = FileUploader(file_link, self._folder, run_id=claimed.run_id)
        self._pins = Pins(self._folder)
        self._cleanup = Cleanup(self._folder.parent)
        self._next_try = 0.0
        self._pause = 0.0
        self._failing_since: float | None = None
        """When the first of the tries to ship was that have failed in a row; None after one that did not."""
        self._last_error = ""

    # ------------------------------------------------------------------ from claim to finish

    def run(self) -> Finish | None:
        held: orphans.HeldRecord | None = None
        try:
            run_folder.make(self._folder)
            self._made = True
            held = orphans.HeldRecord(self._folder, self._claimed, self._with.platform.node)
            finish = self._train(held)
            self._send_finish(finish)
        except Unreachable as error:
            return self._unanswered(error)
        except Exception as error:
            if isinstance(error, Refused) and error.disowned:
                log.warning("%s: stopped, the attempt is another worker's by now: %s", self._name, error)
                return None
            if isinstance(error, GroupSurvives) and held is not None:
                held.survived(error)
            code, message, expected = failure(error, "trainer", self._settings.runs_folder)
            reported = self._fail(code, message, end="paused" if code == DiskFullError.code else "failed")
            if not expected:
                raise
            return reported
        finally:
            self._uploader.close()
            self._record_files.close()
            if self._made:
                resume.clear_fetched(self._folder)
            if held is not None and held.holds:
                held.ended()
        log.info("%s: %s", self._name, finish.end)
        return finish

    def _train(self, held: orphans.HeldRecord) -> Finish:
        loop, settings = self._loop, self._settings
        try:
            patience = self._limits.silence
            run_folder.fill(self._folder, self._claimed, self._link, meanwhile=loop.check, patience=patience)
            checkpoints = resume.choose(
                self._claimed, self._folder, self._link, meanwhile=loop.check, patience=patience
            )
            loop.check()
        except Stopped:
            return self._finish(status=None)
        environment = run_folder.trainer_environment(
            os.environ,
            settings.models_folder,
            hosts=settings.hosts,
            remote_shell=settings.remote_shell,
            vllm_python=settings.vllm_python,
        )
        child = Child(
            self._with.command(self._folder, checkpoints),
            cwd=self._folder,
            env={**environment, orphans.MARK: held.record.mark},
            log=self._files.log_file,
            group=Cgroup.make(f"cohort-{held.record.mark}"),
        )
        status = loop.watch(child, started=held.started, turn=lambda: self._turn(child))
        out_of_memory = child.ran_out_of_memory()
        self._ship_rest()
        if loop.stopped_for is None and self._with.stop.is_set() and ended_as_asked(self._folder, status):
            # What stops this worker signalled its trainer too, as a service manager does, and that one was quicker.
            loop.stop_for(loop.cause() or "shutdown")
        self._upload_rest()
        return self._finish(status=status, out_of_memory=out_of_memory)

    def _finish(self, *, status: int | None, out_of_memory: bool = False) -> Finish:
        return attempt_finish(
            folder=self._folder,
            status=status,
            stopped_for=self._loop.stopped_for,
            last_seq=self._shipper.read_seq,
            fence=self._claimed.fence,
            out_of_memory=out_of_memory,
        )

    def _unanswered(self, error: Unreachable) -> Finish | None:
        """A call had no answer for too long. Reported where beats are answered; else the lease is over anyway."""
        if time.monotonic() - self._loop.answered_at > self._claimed.lease_seconds:
            log.error("%s: given up, the platform stays out of reach: %s", self._name, error)
            return None
        cause = self._loop.cause()
        end = ENDS[cause][0] if cause is not None else "failed"
        return self._fail("not_answered", f"The platform answered beats but not this for too long: {error}", end=end)

    def _fail(self, code: str, message: str, *, end: AttemptEnd) -> Finish | None:
        """Report an attempt that failed on the worker's side; what was acknowledged so far is all there will be."""
        finish = Finish(
            fence=self._claimed.fence,
            end=end,
            code=code,
            message=message,
            log_tail=run_folder.log_tail(self._files.log_file) if self._made else "",
            last_seq=self._shipper.acked_seq,
        )
        log.error("%s: %s", self._name, message)
        try:
            self._send_finish(finish)
        except PlatformError as error:
            log.error("%s: could not report the failure: %s", self._name, error)
            return None
        return finish

    def _send_finish(self, finish: Finish) -> None:
        self._link.finish(finish, patience=self._patience, meanwhile=self._loop.beat_while_finishing)

    @property
    def _patience(self) -> float:
        """How long to wait for the platform when nothing trains any more; less when somebody waits for the end."""
        return self._limits.grace if self._loop.cause() in _SOMEBODY_WAITS else self._limits.silence

    # ------------------------------------------------------------------ one turn of the loop

    def _send_beat(self) -> str:
        reply = self._link.beat(
            Beat(
                fence=self._claimed.fence,
                shipped_seq=self._shipper.acked_seq,
                spooled_bytes=spool_bytes(self._files.spool_folder) if self._made else 0,
                free_bytes=facts.free_bytes(self._settings.runs_folder),
                progress=run_folder.progress(self._folder) if self._made else None,
                removed=list(self._cleanup.removed),
            )
        )
        self._cleanup.removed.clear()
        self._cleanup.remove(reply.needless)
        if self._made:
            self._pins.pin(reply.pinned)
        return reply.desired

    def _turn(self, child: Child) -> bool:
        """Send what is there; whether there may be more at once."""

        def meanwhile() -> None:
            self._loop.mind(child)

        sent = self._ship(meanwhile) == "sent"
        return self._log.ship(meanwhile) or sent

    def _ship(self, meanwhile: Meanwhile) -> Literal["sent", "empty", "failed"]:
        """Send one batch. After a try that failed, nothing is tried for a moment: that is failed, too."""
        if time.monotonic() < self._next_try:
            return "failed"
        try:
            sent = self._shipper.ship(meanwhile)
        except Unreachable as error:
            self._pause = min(max(2 * self._pause, 0.5), 10.0)
            self._next_try = time.monotonic() + self._pause
            self._failing_since = self._failing_since or time.monotonic()
            self._last_error = str(error)
            log.warning("%s: records not sent: %s", self._name, error)
            return "failed"
        self._pause, self._failing_since = 0.0, None
        if not sent:
            return "empty"
        self._loop.answered_at = time.monotonic()
        for checkpoint in self._shipper.checkpoints:
            self._uploader.offer(checkpoint)
            if not checkpoint.final:
                self._pins.known(checkpoint.step)
        self._shipper.checkpoints.clear()
        for file in self._shipper.files:
            self._record_files.offer(file)
        self._shipper.files.clear()
        return "sent"

    def _ship_rest(self) -> None:
        """After the trainer's end: send all that is left. Raises Unreachable when patience is over."""
        while (shipped := self._ship(self._loop.beat)) != "empty":
            self._loop.beat()
            if shipped == "sent":
                continue
            assert self._failing_since is not None
            if time.monotonic() - self._failing_since > self._patience:
                raise Unreachable(f"{self._last_error}. The last records stay in the worker's spool")
            time.sleep(self._limits.tick)
        while self._log.ship(self._loop.beat, at_once=True):
            self._loop.beat()

    def _upload_rest(self) -> None:
        """Have on the platform what is quick enough: the token arrays and, where the run may be resumed on another
        node, its newest checkpoint. Nothing is waited for in a run that is cancelled. A dataset is what its run is
        for, and is waited for as the last records are: raises Unreachable when patience is over."""
        loop = self._loop
        checkpoint = loop.stopped_for in _RESUMED_ELSEWHERE
        if checkpoint:
            self._uploader.hurry()
        # A worker that shuts down has one grace for all; the others may take as long again.
        deadline = loop.kill_at if loop.stopped_for == "shutdown" else time.monotonic() + self._limits.grace
        while ((checkpoint and self._uploader.busy) or self._record_files.waiting) and time.monotonic() <= deadline:
            if loop.cause() == "cancel":
                return
            loop.beat()
            time.sleep(self._limits.tick)
        if checkpoint and not self._uploader.settled:
            log.warning("%s: the newest checkpoint did not reach the platform", self._name)
        while self._record_files.dataset_waiting and loop.stopped_for is None:
            if time.monotonic() > deadline + self._patience:
                raise Unreachable("the sampled dataset did not reach the platform; it stays in the run's folder")
            if loop.cause() == "cancel":
                return
            loop.beat()
            time.sleep(self._limits.tick)
        if files := self._record_files.waiting:
            log.warning("%s: %s files of records did not reach the platform", self._name, files)
