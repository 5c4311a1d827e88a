"""One trainer with everything it starts, ended as a whole and proven gone.

Between this process and the trainer is a reaper process (worker/processes/reaper.py), which kills all of it when this
process dies. When the reaper itself is killed, the trainer dies with it and this process, where it is a sub-reaper,
adopts and ends what is left. What belongs to the trainer is known by kinship, session and control group, never by name.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grpo_core.runtime.cgroups import Cgroup, memory_kills
from worker import devices
from worker.processes import reaper
from worker.processes.reaper import Process, below, process, processes

_KILL_SECONDS = 20.0
_START_SECONDS = 60.0
_LET_GO_SECONDS = 3.0
_COUNT_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
"""Least time that nvidia-smi is given to say who uses the GPUs, however late it is: the platform waits for a beat."""


class GroupSurvives(Exception):
    """Processes that are still there after SIGKILL: they hang in the kernel, usually on a device or a network disk, or
    may not be signalled, because they are another user's.

    `left` are those. `holders` have ended, and a GPU counts them as its users even so, or that is not known.
    """

    def __init__(self, message: str, *, left: Sequence[Process] = (), holders: tuple[int, ...] = ()) -> None:
        self.left, self.holders = left, holders
        super().__init__(message)


class NotStarted(Exception):
    """The reaper could not start the trainer; the message says why."""


_subreaper = False


def become_subreaper() -> None:
    """From now on orphans of this process's descendants are given to it, and `Child.reap` takes every child of this
    process for its own. Only for a process that does nothing but supervise."""
    global _subreaper
    reaper.prctl(reaper.PR_SET_CHILD_SUBREAPER, 1)
    _subreaper = True


def die_with_parent(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send this process the signal when the thread that started it ends. False when that is over."""
    reaper.prctl(reaper.PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


class Child:
    """A running program, leader of its own session, writing to a log file. Raises NotStarted."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, group: Cgroup | None = None
    ) -> None:
        self.group = group
        self._memory_kills = 2 * (memory_kills(),)
        """As counted a while ago, and lately; not from the start, for the kernel may kill a reward's program too."""
        self._counted_at = time.monotonic()
        self._status: int | None = None
        self._output = b""
        self._reaped = False
        command = [sys.executable, "-I", "-S", reaper.__file__, str(group.folders[0]) if group else "", *argv]
        try:
            with log.open("ab") as output:
                self._reaper = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,
                )
            assert self._reaper.stdout is not None
            self._out = self._reaper.stdout
            os.set_blocking(self._out.fileno(), False)
            self.pid, self.ticks = self._started()
        except (OSError, NotStarted):
            if group is not None:
                group.remove()
            raise
        self._seen = {self.pid}
        """Every process that was found to be the trainer's: some of them may hold a GPU for longer than they live."""

    def ended(self) -> bool:
        """Whether the trainer has ended. To be called often."""
        if self._status is None:
            self._read_status()
        if self._status is None and time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._memory_kills = (self._memory_kills[1], memory_kills())
            self._counted_at = time.monotonic()
        return self._status is not None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed for want of memory lately. To be called right after `reap`."""
        return memory_kills() > self._memory_kills[0]

    def terminate(self) -> None:
        """Ask the whole session to end."""
        if self._reaped:
            return
        for member in processes():
            if member.session == self.pid and member.lives:
                reaper.kill(member, signal.SIGTERM)

    def reap(self) -> int:
        """Kill what is left, wait until nothing is, return the trainer's status (−signal if killed).

        Raises GroupSurvives when processes cannot be killed, or a GPU still counts one of them as its user, or
        nvidia-smi, which has shown GPUs before, does not say that none does.
        """
        if self._reaped:
            assert self._status is not None
            return self._status
        deadline = time.monotonic() + _KILL_SECONDS
        while left := self._left():
            if time.monotonic() > deadline:
                message = f"still there {_KILL_SECONDS:.0f} s after SIGKILL: {_listed(left)}"
                raise GroupSurvives(message, left=left)
            if self.group is not None:
                self.group.kill()
            for survivor in left:
                reaper.kill(survivor)
            time.sleep(0.02)
            self.ended()  # read the status before the reaper ends
        self._let_go()
        self._reaped = True
        if self.group is not None:
            self.group.remove()
        self._prove_devices_free(deadline)
        assert self._status is not None
        return self._status

    # ------------------------------------------------------------------ the reaper

    def _started(self) -> tuple[int, int]:
        deadline = time.monotonic() + _START_SECONDS
        while b"\n" not in self._output:
            select.select([self._out], [], [], 1.0)
            chunk = self._read()
            if chunk == b"" or time.monotonic() > deadline:
                self._reaper.kill()
                status = self._reaper.wait()
                raise NotStarted(f"the trainer's reaper ended with status {status} before it had started the trainer")
        line, _, self._output = self._output.partition(b"\n")
        _, pid, ticks = line.split()
        return int(pid), int(ticks)

    def _read(self) -> bytes | None:
        """What the reaper wrote; None when nothing is there yet, empty when there will be no more."""
        try:
            chunk = os.read(self._out.fileno(), 4096)
        except BlockingIOError:
            return None
        self._output += chunk
        return chunk

    def _read_status(self) -> None:
        over = self._read() == b""
        line, newline, _ = self._output.partition(b"\n")
        if newline:
            self._status = int(line.split()[1])
        elif over:
            self._status = -signal.SIGKILL  # by the kernel, for the reaper is dead

    def _let_go(self) -> None:
        """Nothing is left: let the reaper end, and collect it."""
        with suppress(BrokenPipeError):
            if self._reaper.stdin is not None:
                self._reaper.stdin.close()
        try:
            self._reaper.wait(_LET_GO_SECONDS)
        except subprocess.TimeoutExpired:  # somebody stopped it
            self._reaper.kill()
            self._reaper.wait()
        if self._status is None:
            self._read_status()
        self._out.close()
        self._collect_adopted()

    # ------------------------------------------------------------------ proof

    def _left(self) -> list[Process]:
        """What lives of the trainer and all it started."""
        table = processes()
        members = below(self._reaper.pid, table) + (below(os.getpid(), table) if _subreaper else [])
        grouped = set(self.group.pids()) if self.group is not None else set()
        members += [row for row in table if row.session == self.pid or row.pid in grouped]
        self._collect_adopted()
        left = [row for row in {row.pid: row for row in members}.values() if row.lives and row.pid != self._reaper.pid]
        self._seen |= {row.pid for row in left}
        return left

    def _prove_devices_free(self, deadline: float) -> None:
        while True:
            users = devices.gpu_users(max(deadline - time.monotonic(), _ANSWER_SECONDS))
            if users is None and not devices.has_shown_gpus():
                return  # nvidia-smi is here, and has nothing to show
            counted = self._seen if users is None else self._seen & users
            # An id that lives again by now is another process's.
            holders = tuple(sorted(pid for pid in counted if process(pid) is None))
            if not holders:
                return
            if time.monotonic() > deadline:
                who = f"processes {list(holders)}, which have ended"
                if users is None:
                    raise GroupSurvives(f"nvidia-smi does not say whether a GPU still counts {who}", holders=holders)
                raise GroupSurvives(f"a GPU still counts {who}", holders=holders)
            time.sleep(0.5)

    def _collect_adopted(self) -> None:
        if _subreaper:
            reaper.collect_adopted(os.getpid(), self._reaper.pid)  # which Popen collects


def _listed(left: list[Process]) -> str:
    return ", ".join(f"process {row.pid} (state {row.state})" for row in left)
