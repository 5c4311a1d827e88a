"""One sandbox of each level for all tests, and what a box could do harm to."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import grpo_core.errors
from grpo_core.errors import SandboxError
from grpo_core.sandbox import Box, Limits, Ran, Report, Sandbox
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.keeping import NOBODY
from grpo_core.sandbox.landlock import Landlock
from grpo_core.sandbox.python_files import package_roots
from tests.needs import needs

PATIENT = Limits(wall_seconds=120.0)
"""Those of a box, but that a busy machine may take its time."""


class Patient(Sandbox):
    """Gives its boxes these limits where a test names none."""

    def run(self, program: str, **more: Any) -> Ran:
        return super().run(program, **{"limits": PATIENT, **more})

    def open(self, program: str, **more: Any) -> Box:
        return super().open(program, **{"limits": PATIENT, **more})


def made(backend: Bubblewrap | Landlock, level: str) -> Sandbox:
    return Patient(Report(level, "under test", (), (), "", ""), backend)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[Callable[[str], Sandbox]]:
    with ExitStack() as stack:

        @cache
        def of(level: str) -> Sandbox:
            sandbox = made(Bubblewrap() if level == "bubblewrap" else Landlock(), level)
            stack.callback(sandbox.close)
            return sandbox

        def asked(level: str) -> Sandbox:
            """Skips where this machine has no such level."""
            if level == "bubblewrap":
                needs("bwrap")
                return of(level)
            try:
                return of(level)
            except SandboxError as error:
                pytest.skip(f"needs Landlock: {error}")

        yield asked


@pytest.fixture(params=["bubblewrap", "landlock"])
def each(request: pytest.FixtureRequest, sandboxes: Callable[[str], Sandbox]) -> Sandbox:
    return sandboxes(request.param)


@pytest.fixture
def boxes(sandboxes: Callable[[str], Sandbox]) -> Sandbox:
    """Boxes of bubblewrap."""
    return sandboxes("bubblewrap")


@dataclass
class Machine:
    """What attacks are aimed at: servers on loopback, a file that everybody may read, and a process of the same user
    as the boxes."""

    folder: Path
    token: str
    victim: "subprocess.Popen[bytes]"
    own: "subprocess.Popen[bytes]"
    """A process of this user, which is the victim of a plain process."""
    ports: list[int]
    came: list[str] = field(default_factory=list)
    """Which server somebody came to."""

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    def arguments(self, *, boxed: bool = True) -> list[str]:
        numbers = [*self.ports, (self.victim if boxed else self.own).pid, os.getpid()]
        places = [self.canary, self.folder / "server", f"cohort-{self.token}", package_roots()[0]]
        return [*map(str, numbers), *map(str, places), str(Path(grpo_core.errors.__file__).resolve()), self.token]

    def harm(self) -> list[str]:
        """What came of it out here."""
        found = [f"somebody came to {name}" for name in self.came]
        if (
            not self.canary.exists()
            or self.canary.read_text() != "canary"
            or self.canary.stat().st_mode & 0o777 != 0o644
        ):
            found.append("the file was changed")
        if self.canary.stat().st_mtime == 1:
            found.append("the file's time was changed")
        found += [str(place) for place in (Path("/tmp", self.token), Path("/dev/shm", self.token)) if place.exists()]
        found += [
            f"{path.name} in the folder" for path in self.folder.iterdir() if path.name not in ("canary", "server")
        ]
        if self.victim.poll() is not None:
            found.append("the victim died")
        found += [f"process {pid} is left" for pid in processes_with(self.token)]
        return found


def processes_with(word: str) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(place.name))
    return found


@pytest.fixture
def machine(open_folder: Path) -> Iterator[Machine]:
    open_folder.chmod(0o755)
    token = f"token-{os.urandom(6).hex()}"
    canary = open_folder / "canary"
    canary.write_text("canary")
    canary.chmod(0o644)
    user = NOBODY if os.geteuid() == 0 else None
    if user is not None:
        os.chown(open_folder, user, user)
        os.chown(canary, user, user)
    with ExitStack() as stack:
        victim = stack.enter_context(
            subprocess.Popen(["/bin/sleep", "600"], user=user, group=user, extra_groups=[] if user else None)
        )
        stack.callback(victim.kill)
        own = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
        stack.callback(own.kill)
        found = Machine(open_folder, token, victim, own, [])
        stop = threading.Event()
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(open_folder / "server")),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0cohort-{token}"),
        ):
            listening = stack.enter_context(socket.socket(family, kind))
            try:
                listening.bind(address)
            except OSError:  # a machine without IPv6
                found.ports.append(9)
                continue
            if kind == socket.SOCK_STREAM:
                listening.listen()
            if family != socket.AF_UNIX:
                found.ports.append(listening.getsockname()[1])
            listening.settimeout(0.05)
            thread = threading.Thread(target=_serve, args=(name, listening, found.came, stop), daemon=True)
            thread.start()
            stack.callback(thread.join)
        (open_folder / "server").chmod(0o777)
        stack.callback(stop.set)
        yield found
        for pid in processes_with(token):
            os.kill(pid, signal.SIGKILL)
        for place in (Path("/tmp", token), Path("/dev/shm", token)):
            place.unlink(missing_ok=True)


def _serve(name: str, listening: socket.socket, came: list[str], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            if listening.type == socket.SOCK_STREAM:
                listening.accept()[0].close()
            else:
                listening.recv(100)
        except TimeoutError:
            continue
        came.append(name)


def unboxed(program: str, arguments: list[str], folder: Path) -> "subprocess.CompletedProcess[bytes]":
    """The program as a plain process of this user, with one descriptor more than it should have."""
    with open("/dev/null", "rb") as spare:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, *arguments],
            cwd=folder,
            env={"COHORT_SECRET_CANARY": "1", "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[spare.fileno()],
            check=False,
        )
