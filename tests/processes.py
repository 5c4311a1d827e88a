"""Other processes as the tests use them: a clean environment, `cohort` and `grpo` started as a person would, waiting,
and every process that belongs to a home.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from worker.processes.reaper import processes

DEADLINE = 300.0
"""Seconds for what comes at once on a quiet machine; starting Celery and torch takes long on a busy one."""
COHORT = [sys.executable, "-P", "-u", "-m", "cohort.cli.main"]
Found = TypeVar("Found")


def clean_environment(*also: str) -> dict[str, str]:
    """Without the tests' own settings, because commands under test must find theirs by themselves; and without
    variables that begin with one of `also`."""
    dropped = ("COHORT_", "DJANGO_", *also)
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def wait_for(
    true: Callable[[], Found | None], tell: str | Callable[[], str], process: "subprocess.Popen[Any] | None" = None
) -> Found:
    """Ask until the answer is not empty; fails with `tell` when that takes too long or `process` ends before."""
    deadline = time.monotonic() + DEADLINE
    while not (found := true()):
        late = time.monotonic() > deadline
        if late or (process is not None and process.poll() is not None):
            raise AssertionError(f"waited in vain: {tell}" if isinstance(tell, str) else tell())
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def cohort(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    run: dict[str, Any] = {"env": clean_environment() | environment, "stdin": subprocess.DEVNULL, "check": False}
    return subprocess.run([*COHORT, *words], capture_output=True, text=True, **run)


def grpo(*words: str) -> None:
    """Run a command to its end, which must be a good one; what it prints is shown."""
    subprocess.run([sys.executable, "-P", "-m", "grpo_core.cli.main", *words], env=clean_environment(), check=True)


class Started:
    """A `cohort` command that runs; what it prints goes to a file."""

    def __init__(self, words: Sequence[str], printed: Path) -> None:
        self._printed = printed
        with open(printed, "wb") as out:
            files: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            self.process = subprocess.Popen([*COHORT, *words], env=clean_environment(), **files)

    @property
    def printed(self) -> str:
        return self._printed.read_text(encoding="utf-8")

    def find(self, pattern: str) -> str:
        """The first group of the pattern, once it is printed."""
        return self.until(lambda: (match := re.search(pattern, self.printed)) and match[1])

    def until(self, true: Callable[[], Found | None]) -> Found:
        return wait_for(true, lambda: f"the command printed:\n{self.printed}", self.process)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@contextmanager
def up(home: Path, *words: str) -> Iterator[tuple[Started, str]]:
    """(the command, its address) of a `cohort up` on a free port that is ready."""
    started = Started(["up", "--home", str(home), "--port", "0", *words], home.with_name("printed.txt"))
    try:
        yield started, started.find(r"Cohort is at (http://\S+)")
    finally:
        if started.process.poll() is None:
            started.end()
        print(started.printed)


def belonging_to(home: Path) -> list[psutil.Process]:
    """Every live process whose command line or environment names the home."""
    living = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(home) in word for word in words):
                living.append(process)
    return living


def below(pid: int | None = None, *, deep: bool = True) -> list[psutil.Process]:
    """What this process or that of `pid` has started, and if `deep` what that has; without the tests' database, whose
    own processes come and go."""
    living = []
    for process in psutil.Process(pid).children(recursive=deep):
        with suppress(psutil.NoSuchProcess):
            if process.name() != "postgres":
                living.append(process)
    return living


def lives(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two
        return False


def kill_at_once(pids: Iterable[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none can react to another's end
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def session_members(session: int) -> list[int]:
    """Process ids of the session that are not zombies."""
    return [row.pid for row in processes() if row.session == session and row.lives]


def people(home: Path) -> int:
    """How many people the home's database knows, asked through Django's own command."""
    return int(shell(home, "from cohort.accounts.models import User; print(User.objects.count())"))


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=10) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def shell(home: Path, code: str) -> str:
    """What Python code prints that runs in `cohort manage shell` on the home's database."""
    done = cohort("manage", "shell", "--no-imports", "--command", code, COHORT_HOME=str(home))
    assert done.returncode == 0, done.stderr
    return done.stdout
