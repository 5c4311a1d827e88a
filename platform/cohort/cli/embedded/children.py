"""The processes of one `cohort up`: start, wait until ready, notice a death, stop with everything below them.

Each child leads its own process group, so that Ctrl-C on the terminal reaches `cohort up` alone, which then stops
them in order. Output goes to logs/<name>.log of the home; the log of the start before is kept as <name>.log.1.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cohort.cli.embedded.home import HomeError

# Starts one child process that must not outlive `cohort up`, and then becomes it.
#
# `python -m cohort.cli.embedded.children PARENT SIGNAL UID GID COMMAND …`: drops to the user when UID is not our own,
# has the kernel (Linux) send SIGNAL when the parent dies, and replaces itself by COMMAND. It is a separate program
# because code between fork and exec in a process with threads can hang.

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def command(
    argv: Sequence[str], *, death_signal: int = signal.SIGTERM, user: tuple[int, int] | None = None
) -> list[str]:
    """The command line that runs `argv` under this launcher; `user` is (uid, gid), or None for our own."""
    uid, gid = user or (os.geteuid(), os.getegid())
    launcher = [sys.executable, "-P", "-m", "cohort.cli.embedded.children"]
    return [*launcher, str(os.getpid()), str(int(death_signal)), str(uid), str(gid), *argv]


def adopt_orphans() -> None:
    """Make processes whose parent died children of this one, so that none of ours is ever out of sight (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl failed")


def main(argv: Sequence[str]) -> None:
    parent, death_signal, uid, gid = (int(word) for word in argv[:4])
    if os.geteuid() != uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    _prctl(_PR_SET_PDEATHSIG, death_signal)  # after setuid, which clears it
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execvp(argv[4], list(argv[4:]))


if __name__ == "__main__":
    main(sys.argv[1:])


RESTARTS = 3
"""A child that dies is started again, at most so many times within RESTART_WINDOW; then everything is stopped."""
RESTART_WINDOW = 600.0
TAIL_BYTES = 64 * 1024


@dataclass
class Child:
    name: str
    argv: Sequence[str]
    environment: dict[str, str]
    folder: Path
    log: Path
    grace: float
    """Seconds from SIGTERM to SIGKILL."""
    pass_fds: tuple[int, ...] = ()
    ready: Callable[["Child"], bool] = lambda child: True
    process: "subprocess.Popen[bytes] | None" = None
    log_start: int = 0
    """Where in the log the newest start begins."""
    deaths: list[float] = field(default_factory=list)

    def start_anew(self) -> None:
        """With an empty log; the last one is kept."""
        keep_last_log(self.log)
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                command(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                pass_fds=self.pass_fds,
                process_group=0,
            )

    def output(self) -> str:
        """What the child wrote since its newest start."""
        with open(self.log, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode("utf-8", errors="replace")

    def tail(self, lines: int = 15) -> str:
        """Its last lines, of the last 64 KiB at most: a long log is not read whole."""
        with open(self.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start, end - TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
        return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])

    def exit_text(self) -> str:
        """How the process ended, in words."""
        assert self.process is not None
        status = self.process.returncode
        return f"was killed by signal {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def fault(self, what: str) -> HomeError:
        """Of a start that failed, with the log's last lines."""
        return HomeError(f"{self.name} {what}. Its log {self.log} says:\n{self.tail()}")

    def may_restart(self) -> bool:
        return may_restart(self.deaths)


def may_restart(deaths: list[float]) -> bool:
    """Add a death, now, to those of one part; False when there were too many recently."""
    now = time.monotonic()
    deaths[:] = [at for at in deaths if now - at < RESTART_WINDOW] + [now]
    return len(deaths) <= RESTARTS


def keep_last_log(log: Path) -> None:
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))


def wait_until_ready(children: Sequence[Child], seconds: float) -> None:
    """Return when all are ready; raise HomeError with the log's last lines for one that died or took too long."""
    deadline = time.monotonic() + seconds
    waiting = list(children)
    while waiting:
        for child in list(waiting):
            assert child.process is not None
            if child.process.poll() is not None:
                raise child.fault(f"{child.exit_text()} while starting")
            if child.ready(child):
                waiting.remove(child)
        if waiting and time.monotonic() > deadline:
            raise waiting[0].fault(f"was not ready after {seconds:.0f} seconds")
        time.sleep(0.1)


def stop(child: Child, *, hurry: Callable[[], bool]) -> bool:
    """SIGTERM, wait the child's grace (cut short when `hurry` returns true), then SIGKILL to its whole process group.

    Returns whether it had to be killed.
    """
    process, child.process = child.process, None
    if process is None:
        return False
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + child.grace
    while process.poll() is None and time.monotonic() < deadline and not hurry():
        time.sleep(0.05)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def supervisors() -> list[int]:
    """Process ids of the runs' supervisors below this process. One whose worker died got a signal from the kernel: it
    stops its trainer at a checkpoint, reports to the platform and ends, and needs up to the worker's grace for it."""
    pids = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and "worker.supervisor" in process.cmdline():
                pids.append(process.pid)
    return pids


def wait_for_supervisors(seconds: float, *, hurry: Callable[[], bool]) -> None:
    """Wait until there is none, the time is over, or `hurry` returns true."""
    deadline = time.monotonic() + seconds
    while supervisors() and time.monotonic() < deadline and not hurry():
        time.sleep(0.1)


def end_orphans(kept: Sequence[int], *, grace: float) -> None:
    """End every process below this one that does not descend from a process id in `kept`: what dead children left."""
    # Listed before the kept ones, which may start processes meanwhile: those are not in this list.
    left = psutil.Process().children(recursive=True)
    spared = set(kept)
    for pid in kept:
        with suppress(psutil.NoSuchProcess):
            spared.update(process.pid for process in psutil.Process(pid).children(recursive=True))
    left = [process for process in left if process.pid not in spared]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        deadline = time.monotonic() + grace
        while left and time.monotonic() < deadline:
            for process in left:  # collect those that ended; a child of another ends with its parent
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
            left = [process for process in left if process.is_running()]
            time.sleep(0.05)
