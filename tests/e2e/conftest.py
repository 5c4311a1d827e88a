"""A whole Cohort for the tests: `cohort up` in a folder of its own on a free port, as a person would start it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

READY_SECONDS = 180


def clean_environment() -> dict[str, str]:
    """Without the tests' own settings: the commands under test must find theirs by themselves."""
    dropped = ("COHORT_", "DJANGO_SETTINGS_MODULE")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


@dataclass
class Stack:
    """A running `cohort up`."""

    home: Path
    process: subprocess.Popen[str]
    address: str = ""
    printed: list[str] = field(default_factory=list)
    """What it has printed so far."""
    ready: threading.Event = field(default_factory=threading.Event)

    def command(self, *words: str) -> str:
        """Run `cohort …` on this home; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cohort.cli", *words, "--home", str(self.home)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def listen(self) -> None:
        """Collect what the process prints until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if found := re.search(r"Cohort is at (http://\S+)", line):
                self.address = found[1]
                self.ready.set()
        self.ready.set()


@pytest.fixture
def stack(open_folder: Path) -> Iterator[Stack]:
    home = open_folder / "home"
    process = subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "cohort.cli", "up", "--home", str(home), "--port", "0"],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Stack(home, process)
    listener = threading.Thread(target=running.listen, daemon=True)
    listener.start()
    try:
        running.ready.wait(READY_SECONDS)
        assert running.address, "cohort up did not become ready:\n" + "".join(running.printed)
        yield running
    finally:
        process.terminate()
        process.wait(120)
        listener.join(10)
        print("".join(running.printed))
