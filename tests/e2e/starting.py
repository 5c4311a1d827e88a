"""Starts `cohort` commands as a person would, in a home of their own, and finds every process of a home."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from tests.e2e.conftest import clean_environment

DEADLINE = 300.0
Found = TypeVar("Found")


def cohort(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "cohort.cli", *words],
        env=clean_environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


class Started:
    """A command that runs; what it prints goes to a file."""

    def __init__(self, words: Sequence[str], printed: Path) -> None:
        self._printed = printed
        with open(printed, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", "cohort.cli", *words],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

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


def wait_for(
    true: Callable[[], Found | None], tell: Callable[[], str], process: subprocess.Popen[bytes] | None = None
) -> Found:
    """Ask until the answer is not empty; fails with `tell()` when that takes too long or `process` ends before."""
    deadline = time.monotonic() + DEADLINE
    while not (found := true()):
        assert time.monotonic() < deadline, tell()
        assert process is None or process.poll() is None, tell()
        time.sleep(0.1)
    return found


@contextmanager
def up(home: Path, *words: str) -> Iterator[tuple[Started, str]]:
    """(the command, its address) of a `cohort up` on a free port that is ready."""
    started = Started(["up", "--home", str(home), "--port", "0", *words], home.with_name("printed.txt"))
    try:
        yield started, started.find(r"Cohort is at (http://\S+)")
    finally:
        if started.process.poll() is None:
            started.end()


def belonging_to(home: Path) -> list[psutil.Process]:
    """Every live process whose command line or environment names the home."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            told = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(home) in word for word in told):
                found.append(process)
    return found


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=10) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
