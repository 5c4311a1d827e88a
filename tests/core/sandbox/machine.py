"""What escapes are aimed at: servers on loopback, a file that everybody may read, a process of the boxes' user."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpo_core.errors
from grpo_core.sandbox.python_files import package_roots
from grpo_core.sandbox.reaper_client import NOBODY


@dataclass
class Machine:
    folder: Path
    token: str
    victim: "subprocess.Popen[bytes]"
    own: "subprocess.Popen[bytes]"
    """A process of this user, which is the victim of a plain process."""
    ports: list[int] = field(default_factory=list)
    visited: list[str] = field(default_factory=list)
    """Servers that something connected or sent to."""

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def litter(self) -> list[Path]:
        return [Path("/tmp", self.token), Path("/dev/shm", self.token)]

    def arguments(self, *, boxed: bool = True) -> list[str]:
        numbers = [*self.ports, (self.victim if boxed else self.own).pid, os.getpid()]
        paths = [self.canary, self.folder / "server", f"cohort-{self.token}", package_roots()[0]]
        return [*map(str, numbers), *map(str, paths), str(Path(grpo_core.errors.__file__).resolve()), self.token]

    def harm(self) -> list[str]:
        """What a program did out here."""
        harm = [f"{name} was reached" for name in self.visited]
        if not self.canary.exists() or self.canary.read_text() != "canary":
            return [*harm, "the file was changed"]
        status = self.canary.stat()
        if (status.st_mode & 0o777, status.st_mtime == 1) != (0o644, False):
            harm.append("the file's mode or time was changed")
        harm += [str(path) for path in self.litter if path.exists()]
        harm += [path.name for path in self.folder.iterdir() if path.name not in ("canary", "server")]
        if self.victim.poll() is not None:
            harm.append("the victim died")
        return harm + [f"process {pid} is left" for pid in processes_with(self.token)]


def processes_with(word: str) -> list[int]:
    """Every process with the word in its command line."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


@contextmanager
def machine_in(folder: Path) -> Iterator[Machine]:
    folder.chmod(0o755)
    token = f"token-{os.urandom(6).hex()}"
    canary = folder / "canary"
    canary.write_text("canary")
    canary.chmod(0o644)
    user = NOBODY if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, user)
        os.chown(canary, user, user)
    with ExitStack() as stack:
        as_boxes = {"user": user, "group": user, "extra_groups": [] if user else None}
        victim = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], **as_boxes))  # type: ignore[arg-type]
        stack.callback(victim.kill)
        own = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
        stack.callback(own.kill)
        machine = Machine(folder, token, victim, own)
        stop = threading.Event()
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "server")),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0cohort-{token}"),
        ):
            listening = stack.enter_context(socket.socket(family, kind))
            try:
                listening.bind(address)
            except OSError:  # a machine without IPv6
                machine.ports.append(9)
                continue
            if kind == socket.SOCK_STREAM:
                listening.listen()
            if family != socket.AF_UNIX:
                machine.ports.append(listening.getsockname()[1])
            listening.settimeout(0.05)
            thread = threading.Thread(target=_serve, args=(name, listening, machine.visited, stop), daemon=True)
            thread.start()
            stack.callback(thread.join)
        (folder / "server").chmod(0o777)
        stack.callback(stop.set)
        yield machine
        for pid in processes_with(token):
            os.kill(pid, signal.SIGKILL)
        for path in machine.litter:
            path.unlink(missing_ok=True)


def _serve(name: str, listening: socket.socket, visited: list[str], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            if listening.type == socket.SOCK_STREAM:
                listening.accept()[0].close()
            else:
                listening.recv(100)
        except TimeoutError:
            continue
        visited.append(name)


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
