"""One job of the reward lab from claim to finish: start `grpo lab`, and never leave it running.

A job is cheap and has no checkpoint, so it is never asked to stop: whatever ends it early, a cancel, its deadline, a
shutdown or the platform's silence, kills it with all it started.
"""

import logging
import os
import time
from contextlib import ExitStack, suppress
from typing import Any, Literal

from grpo_core.protocol.messages import ChatAnswer, JobBeat, JobFinish, JobGiven
from grpo_core.runtime.cgroups import Cgroup
from worker.exit_cause import disk_message, failure
from worker.folders import job_folder
from worker.folders.job_folder import JobFolder, TooLarge
from worker.folders.run_folder import log_tail, progress, trainer_environment
from worker.platform_client.client import Refused, Unreachable
from worker.processes.child import Child
from worker.supervisor.loop import Loop, Stopped, Supervisor
from worker.supervisor.pages import PageTransfer

ANSWERS_A_BEAT = 4
"""Of a chat; the body of a beat has at most 1 MiB."""
NICE = 10
"""A job gives way to whatever trains on this machine."""

log = logging.getLogger(__name__)


def run_job(supervisor: Supervisor, job_id: int) -> JobFinish | None:
    """Claim and do one job, this one or another that has waited longer. None when it was taken from this worker on the
    way.

    Raises Refused when nothing can be claimed, Unreachable when the platform does not answer.
    """
    job_folder.sweep(supervisor.settings.runs_folder)
    given = supervisor.claim(supervisor.platform.claim_job, job_id)
    log.info("job %s: claimed (%s), fence %s", given.job_id, given.job.get("kind"), given.fence)
    return _Job(supervisor, given).run()


class _Job:
    def __init__(self, supervisor: Supervisor, given: JobGiven) -> None:
        self._with, self._given = supervisor, given
        self._runs = supervisor.settings.runs_folder
        self._name = f"job {given.job_id}"
        self._link = supervisor.platform.job(given)
        self._loop = Loop(
            supervisor,
            self._name,
            self._send_beat,
            interval=given.heartbeat_seconds,
            silence=given.lease_seconds,
            grace=0.0,
            deadline=given.deadline_seconds,
        )
        self._began = time.monotonic()
        self._folder: JobFolder | None = None
        self._confirmed: set[tuple[int, str]] = set()
        """Of a chat, turn and side of each answer that the platform has."""

    def run(self) -> JobFinish | None:
        with ExitStack() as stack:
            try:
                self._folder = stack.enter_context(JobFolder(self._runs, self._given))
                finish = self._do(self._folder)
            except (Refused, Unreachable) as error:
                log.warning("%s: given up: %s", self._name, error)
                return None
            except Exception as error:
                code, message, expected = failure(error, "job", self._runs)
                reported = self._send_finish(self._failed(code, message))
                if not expected:
                    raise
                return reported
            return finish and self._send_finish(finish)

    def _do(self, folder: JobFolder) -> JobFinish | None:
        """Its finish; None when the platform has given the job to another worker by now."""
        settings, loop = self._with.settings, self._loop
        try:
            patience = self._with.limits.grace
            folder.fill(self._given, self._link, device=settings.lab_device, meanwhile=loop.check, patience=patience)
            loop.check()
        except Stopped:
            return self._stopped()
        child = Child(
            folder.command(),
            cwd=folder.path,
            env=trainer_environment(os.environ, settings.models_folder, vllm_python=settings.vllm_python),
            log=folder.log,
            group=Cgroup.make(f"cohort-job-{self._given.job_id}-{self._given.fence}-{os.getpid()}"),
        )
        transfer = PageTransfer(self._link, folder.pages) if self._given.job.get("kind") == "rescore" else None
        try:
            status = loop.watch(child, started=_give_way, turn=transfer.turn if transfer else lambda: False)
            if loop.stopped_for is not None:
                return self._stopped()
            while self._unconfirmed():
                self._send_beat()
            if transfer is not None:
                transfer.drain(patience=patience, meanwhile=loop.beat_while_finishing)
        except Refused as refused:
            if refused.disowned or transfer is None:
                raise
            return self._failed(refused.code, f"The platform refused samples or their scores: {refused}")
        return self._ended(folder, status, out_of_memory=child.ran_out_of_memory())

    def _ended(self, folder: JobFolder, status: int, *, out_of_memory: bool) -> JobFinish:
        try:
            result = folder.result() if status == 0 else None
        except TooLarge as error:
            return self._failed("result_too_large", f"{error}: try fewer problems, or shorter completions")
        except ValueError as error:
            return self._failed("worker_error", f"The job left a result that cannot be read: {error}")
        if result is not None:
            return self._finish("done", result=result)
        if (error_report := folder.error()) is not None:
            return self._failed(*error_report)
        if out_of_memory:
            message = "The system killed the job because memory ran out: try fewer problems, or a smaller model"
            return self._failed("out_of_memory", message)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return self._failed("job_died", f"The job ended by {how} and left no result. Its last lines are below.")

    def _stopped(self) -> JobFinish | None:
        match self._loop.stopped_for:
            case "cancel":
                return self._finish("cancelled")
            case "deadline":
                minutes = self._given.deadline_seconds / 60
                return self._failed(
                    "deadline",
                    f"It took longer than {minutes:.0f} minutes and was ended: try fewer problems, shorter completions "
                    "or a smaller model",
                )
            case "disk":
                return self._failed("disk_full", disk_message(self._runs, "Free some space there, then try again"))
            case "shutdown":
                return self._finish("released")
            case _:
                return None  # silence: the platform has given the job to another worker

    def _send_beat(self) -> str:
        reported = progress(self._folder.out) if self._folder is not None else None
        answers = self._unconfirmed()[:ANSWERS_A_BEAT]
        reply = self._link.beat(JobBeat(fence=self._given.fence, progress=reported, answers=answers))
        self._confirmed |= {(answer.turn, answer.side) for answer in answers}
        if self._folder is not None:
            for turn in reply.turns:
                self._folder.exchange.send(turn)
            if reply.close:
                self._folder.exchange.close()
        return reply.desired

    def _unconfirmed(self) -> list[ChatAnswer]:
        """Of a chat, the answers that the platform has not confirmed."""
        answers = self._folder.exchange.answers() if self._folder is not None else []
        return [answer for answer in answers if (answer.turn, answer.side) not in self._confirmed]

    # ------------------------------------------------------------------ the finish

    def _finish(self, end: Literal["done", "failed", "cancelled", "released"], **fields: Any) -> JobFinish:
        return JobFinish(fence=self._given.fence, end=end, seconds=time.monotonic() - self._began, **fields)

    def _failed(self, code: str, message: str) -> JobFinish:
        return self._finish(
            "failed",
            code=code[:40],
            message=message[:20_000],
            log_tail=log_tail(self._folder.log) if self._folder is not None else "",
        )

    def _send_finish(self, finish: JobFinish) -> JobFinish | None:
        log.info("%s: %s %s", self._name, finish.end, finish.message)
        patience = self._with.limits.grace
        try:
            self._link.finish(finish, patience=patience, meanwhile=self._loop.beat_while_finishing)
        except Refused as refused:
            if refused.disowned or finish.end == "failed":
                log.warning("%s: its finish is refused: %s", self._name, refused)
                return None
            code = "result_too_large" if refused.status == 413 else refused.code
            return self._send_finish(self._failed(code, f"The platform does not take the job's result: {refused}"))
        except Unreachable as error:
            log.error("%s: its finish could not be sent: %s", self._name, error)
            return None
        return finish


def _give_way(child: Child) -> None:
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    with suppress(ProcessLookupError):  # it is over already
        os.setpriority(os.PRIO_PROCESS, child.pid, niceness)
