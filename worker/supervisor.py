"""One attempt from claim to finish: start the trainer, ship its records, beat, obey, and never leave it running.

One thread does it all, in turns, so that nothing needs a lock and the trainer is bound to the thread that watches it.
Every call in the loop is tried once; what failed is tried again on a later turn, while the trainer goes on.
"""

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grpo_core.errors import GrpoError, RunDirError
from grpo_core.run_dir import RunDir
from grpo_core.wire import AttemptEnd, ClaimReply, Finish
from worker import run_folder
from worker.client import AttemptLink, BadFile, Platform, PlatformError, Refused, Unreachable
from worker.devices import node_info
from worker.process import Child
from worker.run_folder import Command, NotPrepared, trainer_command
from worker.shipper import RecordsLost, Shipper

log = logging.getLogger(__name__)

StopCause = Literal["cancel", "shutdown", "silence"]


class _Stopped(Exception):
    """The attempt is to end before its trainer was started."""


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    grace: float = 60.0
    """From SIGTERM to SIGKILL."""
    silence: float = 900.0
    """How long a trainer goes on while the platform cannot be reached, and how long its last records are offered."""
    tick: float = 0.5


@dataclass(frozen=True)
class Supervisor:
    """What stays the same from run to run on this worker. `stop` is set when the worker shuts down."""

    platform: Platform
    runs: Path
    models: Path
    stop: threading.Event = field(default_factory=threading.Event)
    command: Command = trainer_command
    limits: Limits = Limits()

    def run(self, run_id: int) -> Finish | None:
        """Claim and see through one attempt. None when the attempt was taken from this worker on the way.

        Raises Refused when the run cannot be claimed, Unreachable when the platform cannot be asked.
        """
        claimed = self.platform.claim(run_id, node_info())
        log.info("run %s: attempt %s claimed", run_id, claimed.fence)
        return _Attempt(self, claimed).see_through()


class _Attempt:
    def __init__(self, supervisor: Supervisor, claimed: ClaimReply) -> None:
        self._with = supervisor
        self._limits = supervisor.limits
        self._claimed = claimed
        self._link: AttemptLink = supervisor.platform.attempt(claimed)
        self._folder: Path | None = None
        self._shipper: Shipper | None = None
        self._wanted = "run"
        self._stopped_for: StopCause | None = None
        self._kill_at = float("inf")
        self._heard = time.monotonic()
        self._beat_at = 0.0
        self._ship_at = 0.0
        self._pause = 0.0
        self._stuck_since: float | None = None
        """When the first of the tries to ship was that have failed in a row; None after one that did not."""
        self._stuck_for = ""

    # ------------------------------------------------------------------ from claim to finish

    def see_through(self) -> Finish | None:
        try:
            finish = self._train()
            self._link.finish(finish, patience=self._patience, meanwhile=self._still_here)
        except Refused as refused:
            if not refused.disowned:
                return self._fail("platform_refused", f"The platform refused what the worker sent: {refused}")
            log.warning("run %s: stopped, the attempt is no longer ours: %s", self._claimed.run_id, refused)
            return None
        except Unreachable as error:
            return self._give_up(error)
        except (NotPrepared, BadFile) as error:
            return self._fail("not_prepared", str(error))
        except RunDirError as error:
            return self._fail(error.code, f"The trainer's records cannot be shipped: {error}")
        except GrpoError as error:
            return self._fail(error.code, str(error))
        except RecordsLost as error:
            return self._fail("records_lost", str(error))
        except Exception as error:
            self._fail("worker_error", f"The worker failed: {type(error).__name__}: {error}")
            raise
        log.info("run %s: %s", self._claimed.run_id, finish.end)
        return finish

    def _train(self) -> Finish:
        folder = self._folder = run_folder.make(self._claimed, self._with.runs)
        try:
            run_folder.fill(folder, self._claimed, self._link, meanwhile=self._go_on)
            self._go_on()
        except _Stopped:
            return self._finish(folder, status=0)
        self._shipper = Shipper(self._link, RunDir(folder).spool_folder)
        child = Child(
            self._with.command(folder),
            cwd=folder,
            env=run_folder.trainer_environment(os.environ, self._with.models),
            log=RunDir(folder).log_file,
        )
        try:
            while not child.ended():
                self._turn(child)
        finally:
            status = child.reap()
        self._ship_rest()
        return self._finish(folder, status=status)

    def _finish(self, folder: Path, *, status: int) -> Finish:
        return run_folder.verdict(
            folder=folder,
            status=status,
            stopped_for=self._stopped_for,
            last_seq=self._shipper.read_seq if self._shipper else 0,
            fence=self._claimed.fence,
        )

    def _give_up(self, error: Unreachable) -> Finish | None:
        """A call had no answer for too long. A platform that hears the beats is told; else the lease is over anyway."""
        if time.monotonic() - self._heard > self._claimed.lease_seconds:
            log.error("run %s: given up, the platform stays out of reach: %s", self._claimed.run_id, error)
            return None
        ends: dict[StopCause | None, AttemptEnd] = {"cancel": "cancelled", "shutdown": "preempted"}
        message = f"The platform heard this worker but did not answer it for too long: {error}"
        return self._fail("not_answered", message, end=ends.get(self._cause(), "failed"))

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

    @property
    def _patience(self) -> float:
        """How long to wait for the platform when nothing trains any more; less when somebody waits for the end."""
        return self._limits.grace if self._cause() in ("cancel", "shutdown") else self._limits.silence

    def _go_on(self) -> None:
        """Between the steps before training: beat, and raise _Stopped when there is a cause to."""
        self._beat()
        if (cause := self._cause()) is not None:
            self._stopped_for = cause
            raise _Stopped

    def _still_here(self) -> None:
        """Between tries to finish. A refusal is left to the finish, which may have been stored without an answer."""
        with suppress(Refused):
            self._beat()

    # ------------------------------------------------------------------ one turn of the loop

    def _turn(self, child: Child) -> None:
        self._beat()
        shipped = self._ship()
        cause = self._cause()
        if cause is not None and self._stopped_for is None:
            log.info("run %s: stopping the trainer (%s)", self._claimed.run_id, cause)
            self._stopped_for = cause
            self._kill_at = time.monotonic() + self._limits.grace
            child.terminate()
        if time.monotonic() > self._kill_at:
            log.warning("run %s: the trainer did not stop in time and is killed", self._claimed.run_id)
            child.reap()
        elif shipped != "sent":
            time.sleep(self._limits.tick)

    def _cause(self) -> StopCause | None:
        if self._wanted == "cancel":
            return "cancel"
        if self._with.stop.is_set():
            return "shutdown"
        if time.monotonic() - self._heard > self._limits.silence:
            return "silence"
        return None

    def _beat(self) -> None:
        """Tell the platform that we live, when it is time; take what it wants."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + self._claimed.heartbeat_seconds
        try:
            reply = self._link.beat(
                shipped_seq=self._shipper.acked_seq if self._shipper else 0,
                spooled_bytes=self._shipper.spooled_bytes() if self._shipper else 0,
            )
        except Unreachable as error:
            log.warning("run %s: no beat: %s", self._claimed.run_id, error)
            return
        self._heard = time.monotonic()
        self._wanted = reply.desired

    def _ship(self) -> Literal["sent", "empty", "failed"]:
        """Send one batch. After a try that failed, nothing is tried for a moment: that is failed, too."""
        assert self._shipper is not None
        if time.monotonic() < self._ship_at:
            return "failed"
        try:
            sent = self._shipper.ship()
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
        return "sent"

    def _ship_rest(self) -> None:
        """After the trainer's end: send all that is left. Raises Unreachable when patience is over."""
        while (shipped := self._ship()) != "empty":
            self._beat()
            if shipped == "sent":
                continue
            assert self._stuck_since is not None
            if time.monotonic() - self._stuck_since > self._patience:
                raise Unreachable(f"{self._stuck_for}. The last records stay in the worker's spool")
            time.sleep(self._limits.tick)
