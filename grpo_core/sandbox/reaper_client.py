"""The client's side of the reaper: starts it, sends it what to start, and learns when a box is gone."""

import marshal
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import SandboxError

NOBODY = 65534
MOST_FILES = 200
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run")
_REAPER = Path(__file__).with_name("reaper.py")


@dataclass(frozen=True, slots=True)
class Dropped:
    """The user that the reaper becomes, and the folders it must be shown because that user cannot reach them."""

    user: int | None
    mount_point: str
    roots: tuple[Path, ...]

    @property
    def moved(self) -> dict[Path, str]:
        return {root: f"{self.mount_point}/{number}" for number, root in enumerate(self.roots)}


def drop(needed: Sequence[Path]) -> Dropped:
    """As root boxes belong to nobody, since limits on processes do not bind root. Raises SandboxError when there is no
    place to show a closed folder at."""
    if os.geteuid() != 0:
        return Dropped(None, "", ())
    closed = tuple(root for root in needed if root.exists() and not reachable(root))
    for folder in _MOUNT_POINTS:
        free = os.path.isdir(folder) and not any(root.is_relative_to(folder) for root in needed)
        if free and reachable(Path(folder)):
            return Dropped(NOBODY, folder, closed)
    if closed:
        raise SandboxError(
            f"{closed[0]} can be read by root only, and none of {', '.join(_MOUNT_POINTS)} is free to show it to the "
            "sandbox. Make one of these folders, or install Python where every user can read it"
        )
    return Dropped(NOBODY, "", ())


def reachable(path: Path) -> bool:
    """For a user who owns nothing."""
    return all(part.stat().st_mode & 0o001 for part in path.resolve().parents) and bool(path.stat().st_mode & 0o004)


class ReaperClient:
    """One reaper, started when it is first needed; a copy of this object in a forked process starts its own."""

    def __init__(self, dropped: Dropped) -> None:
        self._dropped = dropped
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self, spec: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
        """The socket of one new box: it carries (status, CPU seconds) when all of it is gone; shutting down its writing
        side kills the box. Raises SandboxError when the reaper cannot be started or is gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = marshal.dumps(dict(spec))
            for again in (True, False):
                reaper = self._connected()
                try:
                    socket.send_fds(reaper, [message], [theirs.fileno(), *descriptors])
                except (BrokenPipeError, ConnectionResetError, OSError) as error:
                    self._drop_process(reaper)
                    if again and isinstance(error, ConnectionError):
                        continue
                    ours.close()
                    raise SandboxError(f"the sandbox's reaper took no message: {error}") from None
                return ours
        raise AssertionError("the second try returns or raises")

    def close(self) -> None:
        """Ends the reaper, and with it every box."""
        with self._lock:
            if self._socket is not None and self._owner == os.getpid():
                self._socket.close()
                assert self._process is not None
                self._process.wait()
            self._socket = self._process = None

    def __del__(self) -> None:
        if self._socket is not None and self._owner == os.getpid():
            self._socket.close()
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._socket is None or self._owner != os.getpid():
                self._socket, self._process = _started(self._dropped)
                self._owner = os.getpid()
            return self._socket

    def _drop_process(self, reaper: socket.socket) -> None:
        with self._lock:
            if self._socket is reaper:
                reaper.close()
                assert self._process is not None
                self._process.kill()
                self._process.wait()
                self._socket = self._process = None


def _started(dropped: Dropped) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    with theirs:
        process = subprocess.Popen(
            [python, "-I", "-S", str(_REAPER)],
            env={},
            cwd="/",
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    settings = {
        "parent": os.getpid(),
        "user": dropped.user,
        "place": dropped.mount_point,
        "roots": [str(root) for root in dropped.roots],
    }
    assert process.stderr is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        ours.send(marshal.dumps(settings))
        if ours.recv(16) == b"ready":
            return ours, process
    ours.close()
    stderr = process.stderr.read().decode("utf-8", "replace").strip()
    process.stderr.close()
    process.wait()
    raise SandboxError(f"the sandbox's reaper did not start: {stderr or f'status {process.returncode}'}")
