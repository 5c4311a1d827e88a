"""One child process with everything it starts: a session of its own, ended as a whole.

The child dies with the *thread* that made it (PR_SET_PDEATHSIG): make it in the thread that supervises it. A process
that opens a session of its own leaves this one's reach; the sandbox ties those to their starter by other means.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from worker import launch

_KILL_SECONDS = 20.0


class GroupSurvives(Exception):
    """Processes that are still there after SIGKILL: they hang in the kernel, usually on a device or a network disk."""


class Child:
    """A running program, leader of its own session and group, writing to a log file."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> None:
        wrapped = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *argv]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                wrapped,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def ended(self) -> bool:
        """Whether the leader has ended. It is not reaped, so that its process id stays taken until `reap`."""
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._signal(signal.SIGTERM)

    def reap(self) -> int:
        """Kill what is left of the session, wait until nothing is, return the leader's status (−signal if killed).

        Raises GroupSurvives when processes cannot be killed.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        while left := self._alive():
            if time.monotonic() > deadline:
                raise GroupSurvives(f"processes {left} of session {self.pid} are still there after SIGKILL")
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
        return self._popen.wait()

    def _alive(self) -> list[int]:
        return [] if self._popen.returncode is not None else session_members(self.pid)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is not None:
            return  # reaped: the id may belong to somebody else by now
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        for pid in session_members(self.pid):
            with suppress(ProcessLookupError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)


def session_members(session: int) -> list[int]:
    """Process ids of the session that are not zombies, from /proc. One that is hidden (hidepid) is another user's: we
    could not end it either.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended while we looked, or hidden
        state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state not in "ZX":
            found.append(int(folder.name))
    return found
