"""One attempt from claim to finish: start the trainer, ship its records, beat, obey, and never leave it running.

One thread does it all, in turns, so that nothing needs a lock; only checkpoints are sent by a thread of their own.
Every call in the loop is tried once, and again on a later turn, while the trainer goes on. While a batch of records is
on its way, for minutes on a slow line, it beats and obeys. Durations alone are compared.
"""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grpo_core.errors import CheckpointMissing, DiskFullError, GrpoError, RunDirError
from grpo_core.files.disk import is_full
from grpo_core.files.run_folder import RunDir
from grpo_core.files.spool import spool_bytes
from grpo_core.protocol.messages import AttemptEnd, BeatReply, ClaimReply, Finish
from grpo_core.sandbox import Report
from worker.exit_cause import ENDS, StopCause, ended_as_asked, verdict
from worker.folders import resume, run_folder
from worker.folders.cleanup import Leftovers
from worker.folders.pins import Pins
from worker.folders.run_folder import Command, NotPrepared
from worker.node import disk
from worker.node.facts import node_info
from worker.node.sandbox import known
from worker.platform_client.client import AttemptLink, BadFile, Meanwhile, Platform, PlatformError, Refused, Unreachable
from worker.platform_client.shipper import RecordsLost, Shipper
from worker.platform_client.uploads import Uploader
from worker.processes import orphans
from worker.processes.cgroup import Cgroup
from worker.processes.child import Child, GroupSurvives, NotStarted

log = logging.getLogger(__name__)

_IMPATIENT: set[StopCause | None] = {"cancel", "pause", "drain", "shutdown"}
"""Causes whose end somebody waits for."""
_GOES_ON_ELSEWHERE: set[StopCause | None] = {"pause", "drain", "shutdown", "disk"}
_DESIRED: dict[str, StopCause] = {"cancel": "cancel", "pause": "pause", "preempt": "drain"}


class _Stopped(Exception):
    """The attempt is to end before its trainer was started."""


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    grace: float = 60.0
    """From SIGTERM to SIGKILL; then, how long the newest checkpoint may take to the platform."""
    silence: float = 900.0
    """How long a trainer goes on while the platform is out of reach, and its last records are offered."""
    tick: float = 0.5
    beat: float = 2.5
    """Longest time between two beats, for they bring a person's wish to stop; the platform may ask for more of them."""
    disk: float = 5.0
    """Between two looks at the room on the disk."""


@dataclass(frozen=True)
class Supervisor:
    """What stays the same from run to run on this worker. `stop` is set when the worker shuts down."""

    platform: Platform
    runs: Path
    models: Path
    command: Command
    stop: threading.Event = field(default_factory=threading.Event)
    labels: tuple[str, ...] = ()
    hosts: str = ""
    remote_shell: str = ""
    vllm_python: Path | None = None
    min_free_bytes: int = 0
    upload_seconds: float = 300.0
    sandbox: Report | None = None
    limits: Limits = Limits()

    def run(self, run_id: int) -> Finish | None:
        """Claim and see through one attempt, of this run or of another whose turn it is. None when the attempt was
        taken from this worker on the way.

        Raises Refused when nothing can be claimed, Unreachable when the platform cannot be asked.
        """
        info = node_info(self.labels, self.runs, self.min_free_bytes, self.platform.node, self.vllm_python)
        claimed = self.platform.claim(run_id, known(info, self.sandbox), meanwhile=self._unless_stopped)
        log.info("run %s: attempt %s claimed", claimed.run_id, claimed.fence)
        return _Attempt(self, claimed).see_through()

    def _unless_stopped(self) -> None:
        if self.stop.is_set():
            raise Unreachable("the worker shuts down")


class _Attempt:
    def __init__(self, supervisor: Supervisor, claimed: ClaimReply) -> None:
        self._with = supervisor
        self._limits = supervisor.limits
        self._claimed = claimed
        self._link: AttemptLink = supervisor.platform.attempt(claimed)
        self._folder: Path | None = None
        self._shipper: Shipper | None = None
        self._uploader: Uploader | None = None
        self._wanted: StopCause | None = None
        self._pins: Pins | None = None
        self._leftovers = Leftovers(supervisor.runs / f"run-{claimed.run_id}")
        self._stopped_for: StopCause | None = None
        self._kill_at = float("inf")
        self._heard, self._unheard = time.monotonic(), False
        self._beat_at = 0.0
        self._disk_at = 0.0
        self._no_room = False
        self._ship_at = 0.0
        self._pause = 0.0
        self._stuck_since: float | None = None
        """When the first of the tries to ship was that have failed in a row; None after one that did not."""
        self._stuck_for = ""

    # ------------------------------------------------------------------ from claim to finish

    def see_through(self) -> Finish | None:
        held: orphans.Held | None = None
        try:
            folder = self._folder = run_folder.make(self._claimed, self._with.runs)
            held = orphans.Held(folder, self._claimed, self._with.platform.node)
            self._pins = Pins(folder)
            finish = self._train(folder, held)
            self._link.finish(finish, patience=self._patience, meanwhile=self._still_here)
        except Refused as refused:
            if not refused.disowned:
                return self._fail("platform_refused", f"The platform refused what the worker sent: {refused}")
            log.warning("run %s: stopped, the attempt is no longer ours: %s", self._claimed.run_id, refused)
            return None
        except Unreachable as error:
            return self._give_up(error)
        except resume.NoCheckpoint as error:
            return self._fail(CheckpointMissing.code, str(error))
        except (NotPrepared, BadFile) as error:
            return self._fail("not_prepared", str(error))
        except RunDirError as error:
            return self._fail(error.code, f"The trainer's records cannot be shipped: {error}")
        except DiskFullError as error:
            return self._fail(*self._no_room_at(error), end="paused")
        except GrpoError as error:
            return self._fail(error.code, str(error))
        except RecordsLost as error:
            return self._fail("records_lost", str(error))
        except NotStarted as error:
            return self._fail("worker_error", f"The trainer could not be started: {error}")
        except GroupSurvives as error:
            assert held is not None
            held.survived(error)
            return self._fail("worker_error", f"The trainer ended, but not all of it: {error}")
        except OSError as error:
            if not is_full(error):
                self._fail("worker_error", f"The worker failed: {type(error).__name__}: {error}")
                raise
            return self._fail(*self._no_room_at(error), end="paused")
        except Exception as error:
            self._fail("worker_error", f"The worker failed: {type(error).__name__}: {error}")
            raise
        finally:
            if self._uploader is not None:
                self._uploader.close()
            if self._folder is not None:
                resume.clear_fetched(self._folder)
            if held is not None and held.holds:
                held.ended()
        log.info("run %s: %s", self._claimed.run_id, finish.end)
        return finish

    def _train(self, folder: Path, held: orphans.Held) -> Finish:
        claimed, patience, at = self._claimed, self._limits.silence, self._with
        try:
            run_folder.fill(folder, claimed, self._link, meanwhile=self._go_on, patience=patience)
            checkpoints = resume.choose(
                claimed, runs=self._with.runs, folder=folder, link=self._link, meanwhile=self._go_on, patience=patience
            )
            self._go_on()
        except _Stopped:
            return self._finish(folder, status=None)
        self._shipper = Shipper(self._link, RunDir(folder).spool_folder)
        aside = at.platform.attempt_aside(claimed)
        self._uploader = Uploader(aside, folder, every=at.upload_seconds, run_id=claimed.run_id)
        environment = run_folder.trainer_environment(
            os.environ, at.models, hosts=at.hosts, remote_shell=at.remote_shell, vllm_python=at.vllm_python
        )
        child = Child(
            self._with.command(folder, checkpoints),
            cwd=folder,
            env={**environment, orphans.MARK: held.record.mark},
            log=RunDir(folder).log_file,
            group=Cgroup.make(f"cohort-{held.record.mark}"),
        )
        try:
            held.started(child)
            while not child.ended():
                self._mind(child)
                if self._ship(lambda: self._mind(child)) != "sent":
                    time.sleep(self._limits.tick)
        finally:
            status = child.reap()
        out_of_memory = child.ran_out_of_memory()
        self._ship_rest()
        if self._stopped_for is None and self._with.stop.is_set() and ended_as_asked(folder, status):
            # Whoever stops this worker told its trainer too, as a service manager does, and that one was quicker.
            self._stopped_for, self._kill_at = self._cause(), time.monotonic() + self._limits.grace
        self._upload_rest()
        return self._finish(folder, status=status, out_of_memory=out_of_memory)

    def _finish(self, folder: Path, *, status: int | None, out_of_memory: bool = False) -> Finish:
        return verdict(
            folder=folder,
            status=status,
            stopped_for=self._stopped_for,
            last_seq=self._shipper.read_seq if self._shipper else 0,
            fence=self._claimed.fence,
            out_of_memory=out_of_memory,
        )

    def _give_up(self, error: Unreachable) -> Finish | None:
        """A call had no answer for too long. A platform that hears the beats is told; else the lease is over anyway."""
        if time.monotonic() - self._heard > self._claimed.lease_seconds:
            log.error("run %s: given up, the platform stays out of reach: %s", self._claimed.run_id, error)
            return None
        cause = self._cause()
        end = ENDS[cause][0] if cause is not None else "failed"
        message = f"The platform heard this worker but did not answer it for too long: {error}"
        return self._fail("not_answered", message, end=end)

    def _fail(self, code: str, message: str, *, end: AttemptEnd = "failed") -> Finish | None:
        """Report an attempt that failed on the worker's side; what was acknowledged so far is all there will be."""
        finish = Finish(
            fence=self._claimed.fence,
            end=end,
            code=code,
            message=message,
            log_tail=run_folder.log_tail(self._folder) if self._folder else "",
            last_seq=self._shipper.acked_seq if self._shipper else 0,
        )
        log.error("run %s: %s", self._claimed.run_id, message)
        try:
            self._link.finish(finish, patience=self._patience, meanwhile=self._still_here)
        except PlatformError as error:
            log.error("run %s: could not report the failure: %s", self._claimed.run_id, error)
            return None
        return finish

    def _no_room_at(self, error: Exception) -> tuple[str, str]:
        runs, left = self._with.runs, disk.size_in_words(disk.free_bytes(self._with.runs))
        where = f"The disk of {runs} on {socket.gethostname()} is full: {left} are left"
        return DiskFullError.code, f"{where} ({error}). Free some space there, then resume the run."

    @property
    def _patience(self) -> float:
        """How long to wait for the platform when nothing trains any more; less when somebody waits for the end."""
        return self._limits.grace if self._cause() in _IMPATIENT else self._limits.silence

    def _go_on(self) -> None:
        """Between the steps before training: beat, and raise _Stopped when there is a cause to."""
        self._beat()
        self._stopped_for = self._cause()
        if self._stopped_for is not None:
            raise _Stopped

    def _still_here(self) -> None:
        """Between tries to finish. A refusal is left to the finish, which may have been stored without an answer."""
        with suppress(Refused):
            self._beat()

    # ------------------------------------------------------------------ one turn of the loop

    def _mind(self, child: Child) -> None:
        """Beat, and stop the trainer when there is a cause to."""
        self._beat()
        cause = self._cause()
        if cause is not None and self._stopped_for is None:
            log.info("run %s: stopping the trainer (%s)", self._claimed.run_id, cause)
            self._stopped_for = cause
            self._kill_at = time.monotonic() + self._limits.grace
            child.terminate()
        elif cause == "cancel":
            self._stopped_for = cause  # whatever it was stopped for before
        if time.monotonic() > self._kill_at and not child.ended():
            log.warning("run %s: the trainer did not stop in time and is killed", self._claimed.run_id)
            child.reap()

    def _cause(self) -> StopCause | None:
        if self._wanted in ("cancel", "pause"):
            return self._wanted
        if self._with.stop.is_set():
            return "shutdown"
        if self._wanted is not None:
            return self._wanted
        if self._disk_is_full():
            return "disk"
        if time.monotonic() - self._heard > self._limits.silence:
            return "silence"
        return None

    def _disk_is_full(self) -> bool:
        now = time.monotonic()
        if not self._no_room and now >= self._disk_at:
            self._disk_at = now + self._limits.disk
            self._no_room = disk.free_bytes(self._with.runs) < self._with.min_free_bytes
        return self._no_room

    def _beat(self) -> None:
        """Tell the platform that we live, when it is time; take what it wants."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + min(self._claimed.heartbeat_seconds, self._limits.beat)
        try:
            reply = self._link.beat(
                shipped_seq=self._shipper.acked_seq if self._shipper else 0,
                spooled_bytes=spool_bytes(RunDir(self._folder).spool_folder) if self._folder else 0,
                free_bytes=disk.free_bytes(self._with.runs),
                progress=run_folder.progress(self._folder) if self._folder else None,
                removed=self._leftovers.removed,
            )
        except Unreachable as error:
            if not self._unheard:  # once for each outage
                log.warning("run %s: no beat: %s", self._claimed.run_id, error)
            self._unheard = True
            return
        self._heard, self._unheard = time.monotonic(), False
        self._leftovers.removed.clear()
        self._obey(reply)

    def _obey(self, reply: BeatReply) -> None:
        self._wanted = _DESIRED.get(reply.desired)
        if self._pins is not None:
            self._pins.pin(reply.pinned)
        self._leftovers.clear(reply.needless)

    def _ship(self, meanwhile: Meanwhile) -> Literal["sent", "empty", "failed"]:
        """Send one batch. After a try that failed, nothing is tried for a moment: that is failed, too."""
        assert self._shipper is not None
        if time.monotonic() < self._ship_at:
            return "failed"
        try:
            sent = self._shipper.ship(meanwhile)
        except Unreachable as error:
            self._pause = min(max(2 * self._pause, 0.5), 10.0)
            self._ship_at = time.monotonic() + self._pause
            self._stuck_since = self._stuck_since or time.monotonic()
            self._stuck_for = str(error)
            log.warning("run %s: records not sent: %s", self._claimed.run_id, error)
            return "failed"
        self._pause, self._stuck_since = 0.0, None
        if not sent:
            return "empty"
        self._heard = time.monotonic()
        self._offer_checkpoints()
        return "sent"

    def _offer_checkpoints(self) -> None:
        assert self._shipper is not None
        assert self._uploader is not None
        assert self._pins is not None
        for checkpoint in self._shipper.checkpoints:
            self._uploader.offer(checkpoint)
            if not checkpoint.final:
                self._pins.known(checkpoint.step)
        self._shipper.checkpoints.clear()

    def _ship_rest(self) -> None:
        """After the trainer's end: send all that is left. Raises Unreachable when patience is over."""
        while (shipped := self._ship(self._beat)) != "empty":
            self._beat()
            if shipped == "sent":
                continue
            assert self._stuck_since is not None
            if time.monotonic() - self._stuck_since > self._patience:
                raise Unreachable(f"{self._stuck_for}. The last records stay in the worker's spool")
            time.sleep(self._limits.tick)

    def _upload_rest(self) -> None:
        """Where the run may go on at another node: have its newest checkpoint there, if that takes not too long."""
        assert self._uploader is not None
        if self._stopped_for not in _GOES_ON_ELSEWHERE:
            return
        self._uploader.hurry()
        # A worker that shuts down has one grace for all; the others may take as long again.
        deadline = self._kill_at if self._stopped_for == "shutdown" else time.monotonic() + self._limits.grace
        while self._uploader.busy and time.monotonic() <= deadline:
            self._beat()
            if self._cause() == "cancel":
                return
            time.sleep(self._limits.tick)
        if not self._uploader.settled:
            log.warning("run %s: the newest checkpoint did not reach the platform", self._claimed.run_id)
