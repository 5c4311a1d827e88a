"""The loop that runs and jobs share: beat, learn the desired action, stop the child, prove that it is gone.

    claimed ──► preparing ──► child runs ──► child ended ──► what is left is sent ──► finish reported
                    │             │  cause to stop                ▲
                    │             ▼                               │
                    │         SIGTERM, grace, SIGKILL ────────────┤
                    └── cause to stop: no child is started ───────┘

A refusal because the lease is another worker's leaves this at any point: the child is killed and nothing is reported.
One thread does it all, in turns, so that nothing needs a lock. A call in the loop is tried once, and again on a later
turn, while the child continues. Only durations are compared, never times of day.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

from grpo_core.sandbox import Report
from worker.environment import Environment
from worker.exit_cause import StopCause
from worker.folders.run_folder import Command
from worker.node import facts
from worker.node.facts import node_info, with_sandbox
from worker.platform_client.client import Platform, Refused, Unreachable
from worker.processes.child import Child

_CAUSES: dict[str, StopCause] = {"cancel": "cancel", "pause": "pause", "preempt": "drain"}
"""By the action that the platform desires."""
Claimed = TypeVar("Claimed")

log = logging.getLogger(__name__)


class Stopped(Exception):
    """There is a cause to stop before the child was started."""


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    grace: float = 60.0
    """From SIGTERM to SIGKILL; then, how long the newest checkpoint may take to the platform."""
    silence: float = 900.0
    """How long a trainer continues while the platform is out of reach, and its last records are offered."""
    tick: float = 0.5
    beat: float = 2.5
    """Longest time between two beats, for they return the desired action; the platform may ask for more of them."""
    disk: float = 5.0
    """Between two checks of the free disk space."""


@dataclass(frozen=True)
class Supervisor:
    """What is the same for every run and job of this worker. `stop` is set when the worker shuts down."""

    platform: Platform
    settings: Environment
    command: Command
    """Starts a run's trainer."""
    stop: threading.Event = field(default_factory=threading.Event)
    sandbox: Report | None = None
    limits: Limits = Limits()

    def claim(self, call: Callable[..., Claimed], number: int) -> Claimed:
        """Raises Refused when nothing can be claimed, Unreachable when the platform does not answer."""
        info = with_sandbox(node_info(self.settings, self.platform.node), self.sandbox)
        return call(number, info, meanwhile=self._unless_stopped)

    def _unless_stopped(self) -> None:
        if self.stop.is_set():
            raise Unreachable("the worker shuts down")


@dataclass(eq=False)
class Loop:
    """What one run or job has of it."""

    supervisor: Supervisor
    name: str
    send_beat: Callable[[], str]
    """Makes one beat and returns the action that the platform desires."""
    _: KW_ONLY
    interval: float
    """Between two beats, in seconds; at most the supervisor's."""
    silence: float
    """Seconds without an answer after which the child is stopped."""
    grace: float
    """Seconds from SIGTERM to SIGKILL; 0 kills at once."""
    deadline: float = math.inf
    """Seconds from now after which the child is stopped."""

    def __post_init__(self) -> None:
        self._desired: StopCause | None = None
        self._unanswered = False
        self._disk_full = False
        self._next_beat = self._next_disk_check = 0.0
        self._ends_at = time.monotonic() + self.deadline
        self.answered_at = time.monotonic()
        """When the platform last answered."""
        self.stopped_for: StopCause | None = None
        self.kill_at = math.inf

    def beat(self) -> None:
        """Send a beat if one is due. Raises Refused."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + min(self.interval, self.supervisor.limits.beat)
        try:
            desired = self.send_beat()
        except Unreachable as error:
            if not self._unanswered:  # once for each outage
                log.warning("%s: no beat: %s", self.name, error)
            self._unanswered = True
            return
        self._unanswered = False
        self.answered_at = time.monotonic()
        self._desired = _CAUSES.get(desired)

    def beat_while_finishing(self) -> None:
        """A refusal is left to the finish, which may have been stored though its answer was lost."""
        with suppress(Refused):
            self.beat()

    def cause(self) -> StopCause | None:
        """Why the child is to be stopped now."""
        if self._desired in ("cancel", "pause"):
            return self._desired
        if self.supervisor.stop.is_set():
            return "shutdown"
        if self._desired is not None:
            return self._desired
        now = time.monotonic()
        if now > self._ends_at:
            return "deadline"
        if not self._disk_full and now >= self._next_disk_check:
            self._next_disk_check = now + self.supervisor.limits.disk
            self._disk_full = facts.is_short(
                self.supervisor.settings.runs_folder, self.supervisor.settings.min_free_bytes
            )
        if self._disk_full:
            return "disk"
        return "silence" if now - self.answered_at > self.silence else None

    def check(self) -> None:
        """Between the steps before the child's start. Raises Stopped, and Refused."""
        self.beat()
        self.stopped_for = self.cause()
        if self.stopped_for is not None:
            raise Stopped

    def mind(self, child: Child) -> None:
        """Beat, and stop the child when there is a cause to. Raises Refused, and GroupSurvives."""
        self.beat()
        cause = self.cause()
        if cause is not None and self.stopped_for is None:
            log.info("%s: stopping (%s)", self.name, cause)
            self.stop_for(cause)
            if self.grace > 0:
                child.terminate()
        elif cause == "cancel":
            self.stopped_for = cause  # whatever it was stopped for before
        if time.monotonic() >= self.kill_at and not child.ended():
            log.info("%s: killed, for it did not stop in %.0f s", self.name, self.grace)
            child.reap()

    def stop_for(self, cause: StopCause) -> None:
        self.stopped_for, self.kill_at = cause, time.monotonic() + self.grace

    def watch(self, child: Child, *, started: Callable[[Child], None], turn: Callable[[], bool]) -> int:
        """Call `started`, then mind the child until it has ended; returns its status. `turn` is called after each look
        and returns whether there is more to do at once."""
        try:
            started(child)
            while not child.ended():
                self.mind(child)
                if not turn():
                    time.sleep(self.supervisor.limits.tick)
        finally:
            status = child.reap()
        return status
