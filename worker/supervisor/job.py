"""One job of the reward lab from claim to finish: start `grpo lab`, beat, obey, and never leave it running.

A job is cheap and has no checkpoint, so it is never asked to stop: whatever ends it early, a person's wish, its
deadline, a shutdown or the platform's silence, kills it with all it started.
"""

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Literal

from grpo_core.files.disk import is_full
from grpo_core.protocol.messages import JobFinish, JobGiven
from grpo_core.sandbox import Report
from grpo_core.text import UNSTORABLE
from worker.folders import job_folder
from worker.folders.job_folder import JobFolder, TooLarge
from worker.folders.run_folder import NotPrepared, trainer_environment
from worker.node import disk
from worker.node.facts import node_info
from worker.node.sandbox import known
from worker.platform_client.client import BadFile, JobLink, Platform, PlatformError, Refused, Unreachable
from worker.processes.cgroup import Cgroup
from worker.processes.child import Child, GroupSurvives, NotStarted

Cause = Literal["cancel", "deadline", "shutdown", "silence", "disk"]
NICE = 10
"""A job gives way to whatever trains on this machine."""

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The job is to end before its program was started."""


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    tick: float = 0.2
    beat: float = 2.5
    disk: float = 5.0
    patience: float = 60.0
    """For fetching the dataset, from byte to byte, and for the last word."""


@dataclass(frozen=True)
class JobSupervisor:
    platform: Platform
    runs: Path
    models: Path
    stop: Event = field(default_factory=Event)
    labels: tuple[str, ...] = ()
    min_free_bytes: int = 0
    device: str = "cpu"
    sandbox: Report | None = None
    vllm_python: Path | None = None
    limits: Limits = Limits()

    def run(self, job_id: int) -> JobFinish | None:
        """Claim and see through one job, this one or another that has waited longer. None when it was taken from this
        worker on the way.

        Raises Refused when nothing can be claimed, Unreachable when the platform cannot be asked.
        """
        job_folder.sweep(self.runs)
        info = node_info(self.labels, self.runs, self.min_free_bytes, self.platform.node, self.vllm_python)
        given = self.platform.claim_job(job_id, known(info, self.sandbox), meanwhile=self._unless_stopped)
        log.info("job %s: claimed (%s), fence %s", given.job_id, given.job.get("kind"), given.fence)
        return _Doing(self, given).see_through()

    def _unless_stopped(self) -> None:
        if self.stop.is_set():
            raise Unreachable("the worker shuts down")


class _Doing:
    def __init__(self, supervisor: JobSupervisor, given: JobGiven) -> None:
        self._with = supervisor
        self._limits = supervisor.limits
        self._given = given
        self._link: JobLink = supervisor.platform.job(given)
        self._began = self._heard = time.monotonic()
        self._beat_at = self._disk_at = 0.0
        self._called_off = False
        self._no_room = False
        self._folder: JobFolder | None = None

    def see_through(self) -> JobFinish | None:
        try:
            with JobFolder(self._with.runs, self._given) as self._folder:
                finish = self._do(self._folder)
                return self._tell(finish)
        except Refused as refused:
            log.warning("job %s: stopped, it is no longer ours: %s", self._given.job_id, refused)
        except PlatformError as error:
            log.error("job %s: given up: %s", self._given.job_id, error)
        except OSError as error:
            if not is_full(error):
                self._tell(self._failed("worker_error", f"The worker failed: {type(error).__name__}: {error}"))
                raise
            return self._tell(self._failed(*self._full()))
        return None

    def _do(self, folder: JobFolder) -> JobFinish | None:
        """Its last word; None when there is nobody to hear one. Raises Refused when the job is not ours any more."""
        try:
            folder.fill(
                self._given,
                self._link,
                device=self._with.device,
                meanwhile=self._go_on,
                patience=self._limits.patience,
            )
            self._go_on()
            return self._see_child_through(folder)
        except _Stopped:
            return self._stopped(self._cause())
        except (NotPrepared, BadFile) as error:
            return self._failed("not_prepared", str(error))
        except NotStarted as error:
            return self._failed("worker_error", f"The job could not be started: {error}")
        except GroupSurvives as error:
            return self._failed("worker_error", f"The job ended, but not all of it: {error}")

    def _see_child_through(self, folder: JobFolder) -> JobFinish | None:
        child = Child(
            folder.command(),
            cwd=folder.path,
            env=trainer_environment(os.environ, self._with.models, vllm_python=self._with.vllm_python),
            log=folder.log,
            group=Cgroup.make(f"cohort-job-{self._given.job_id}-{self._given.fence}-{os.getpid()}"),
        )
        cause: Cause | None = None
        try:
            niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
            with suppress(ProcessLookupError):  # it is over already
                os.setpriority(os.PRIO_PROCESS, child.pid, niceness)
            while not child.ended():
                self._beat(folder)
                if (cause := self._cause()) is not None:
                    log.info("job %s: killed (%s)", self._given.job_id, cause)
                    break
                time.sleep(self._limits.tick)
        finally:
            status = child.reap()
        if cause is not None:
            return self._stopped(cause)
        return self._ended(folder, status, out_of_memory=child.ran_out_of_memory())

    def _ended(self, folder: JobFolder, status: int, *, out_of_memory: bool) -> JobFinish:
        try:
            result = folder.result() if status == 0 else None
        except TooLarge as error:
            return self._failed("result_too_large", f"{error}: try fewer problems, or shorter completions")
        except ValueError as error:
            return self._failed("worker_error", f"The job left a result that cannot be read: {error}")
        if result is not None:
            return self._word("done", result=result)
        if (told := folder.error()) is not None:
            return self._failed(*told)
        if out_of_memory:
            message = "The system killed the job because memory ran out: try fewer problems, or a smaller model"
            return self._failed("out_of_memory", message)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return self._failed("job_died", f"The job ended by {how} and left no result. Its last lines are below.")

    def _stopped(self, cause: Cause | None) -> JobFinish | None:
        match cause:
            case "cancel":
                return self._word("cancelled")
            case "deadline":
                minutes = self._given.deadline_seconds / 60
                return self._failed(
                    "deadline",
                    f"It took longer than {minutes:.0f} minutes and was ended: try fewer problems, shorter completions "
                    "or a smaller model",
                )
            case "disk":
                return self._failed(*self._full())
            case "shutdown":
                return self._word("released")
            case _:
                return None  # the platform does not hear us, and has given the job to somebody else

    # ------------------------------------------------------------------ one turn

    def _go_on(self) -> None:
        """Between the steps before the start: beat, and raise _Stopped when there is a cause to."""
        self._beat(None)
        if self._cause() is not None:
            raise _Stopped

    def _cause(self) -> Cause | None:
        now = time.monotonic()
        if self._called_off:
            return "cancel"
        if self._with.stop.is_set():
            return "shutdown"
        if now - self._began > self._given.deadline_seconds:
            return "deadline"
        if now - self._heard > self._given.lease_seconds:
            return "silence"
        if now >= self._disk_at:
            self._disk_at = now + self._limits.disk
            self._no_room = disk.free_bytes(self._with.runs) < self._with.min_free_bytes
        return "disk" if self._no_room else None

    def _beat(self, folder: JobFolder | None) -> None:
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + min(self._given.heartbeat_seconds, self._limits.beat)
        try:
            reply = self._link.beat(progress=folder.progress() if folder is not None else None)
        except Unreachable as error:
            log.warning("job %s: no beat: %s", self._given.job_id, error)
            return
        self._heard = time.monotonic()
        self._called_off = reply.desired == "cancel"

    # ------------------------------------------------------------------ the last word

    def _word(
        self, end: Literal["done", "cancelled", "released"], *, result: dict[str, object] | None = None
    ) -> JobFinish:
        return JobFinish(fence=self._given.fence, end=end, result=result, seconds=time.monotonic() - self._began)

    def _failed(self, code: str, message: str) -> JobFinish:
        return JobFinish(
            fence=self._given.fence,
            end="failed",
            code=code[:40],
            message=UNSTORABLE.sub("\ufffd", message)[:20_000],
            log_tail=self._folder.log_tail() if self._folder is not None else "",
            seconds=time.monotonic() - self._began,
        )

    def _full(self) -> tuple[str, str]:
        left = disk.size_in_words(disk.free_bytes(self._with.runs))
        return "disk_full", (
            f"The disk of {self._with.runs} on {socket.gethostname()} is nearly full: {left} are left. Free some space "
            "there, then try again."
        )

    def _tell(self, finish: JobFinish | None) -> JobFinish | None:
        if finish is None:
            return None
        log.info("job %s: %s %s", self._given.job_id, finish.end, finish.message)
        try:
            self._link.finish(finish, patience=self._limits.patience)
        except Refused as refused:
            if refused.disowned or finish.end == "failed":
                raise
            words = f"The platform does not take what the job found: {refused}"
            finish = self._failed("result_too_large" if refused.status == 413 else refused.code, words)
            self._link.finish(finish, patience=self._limits.patience)
        return finish
