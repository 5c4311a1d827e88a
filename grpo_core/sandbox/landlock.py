"""The weaker box, for machines that let nobody make namespaces: Landlock for files, network and signals, the filter of
system calls, limits, and one process group that nothing in the box can leave. What it does not keep apart is listed in
`WEAKER` and travels in every report."""

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

from grpo_core.errors import SandboxError
from grpo_core.sandbox import seccomp
from grpo_core.sandbox.bubblewrap import seen
from grpo_core.sandbox.python_files import PACKAGES, PythonFiles, package_files, package_roots, python_files
from grpo_core.sandbox.reaper_client import Dropped, drop
from grpo_core.sandbox.spec import CHANNEL_TEXT, FLAGS, HASHES, LANDLOCK_CHILD, BoxSpec, Recipe, rlimits

SPARE_PROCESSES = 1024
"""Kept free above all tasks of the machine for the processes of boxes, where the kernel counts them together."""
OLDEST_ABI = 3
"""Before it a file that may be read could be emptied."""


class Landlock:
    def __init__(self) -> None:
        """Raises SandboxError when the kernel has no Landlock or this machine's calls are not known."""
        self.abi = landlock_abi()
        python = python_files()
        self.dropped: Dropped = drop([*python.roots, *package_roots()])
        self._moved = self.dropped.moved
        readable, listed = _without_hidden(python)
        self._readable = [seen(path, self._moved) for path in readable]
        self._listed = [seen(path, self._moved) for path in listed]
        self._words = (seen(python.executable, self._moved), *FLAGS)
        self._environment = {"LANG": "C.UTF-8", "PATH": "/nonexistent", HASHES[0]: HASHES[1]}
        if python.libraries:
            self._environment["LD_LIBRARY_PATH"] = seen(Path(python.libraries), self._moved)
        self._filter = seccomp.program(platform.machine(), shared=True)

    def recipe(self, spec: BoxSpec) -> Recipe:
        packages = package_files(spec.packages)
        setup = {
            "limits": rlimits(spec.limits, holders=SPARE_PROCESSES),
            "helper": CHANNEL_TEXT if spec.held_open else None,
            "argv": [*(["3"] if spec.held_open else []), *spec.arguments],
            "path": [],
            "landlock_child": LANDLOCK_CHILD,
            "files": {"program.py": spec.program.encode("utf-8", "surrogatepass"), **spec.files},
            # Links, because a folder on Python's path must be listed, and a rule on it would open all that is in it.
            "packages": {target.removeprefix(f"{PACKAGES}/"): seen(here, self._moved) for here, target in packages},
            "readable": self._readable,
            "listed": self._listed,
            "abi": self.abi,
            "filter": self._filter,
            "own_pid": seccomp.OWN_PID,
        }
        return Recipe(self._words, None, (), setup, self._environment, folder=True)


WEAKER = (
    "names, sizes and times of files outside the box can be asked for, though no file can be read",
    "process numbers are shared with the machine, though no other process can be signalled or looked into",
    "/tmp has no size: each file is bounded, their number is not",
    "the network is closed by Landlock and the filter of system calls, not by a network of the box's own",
    "programs in a box cannot signal each other, change modes of files, lead a session, or share semaphores, so "
    "multiprocessing's locks and queues do not work",
)
NO_PROCESS_GROUP = "processes are counted over all boxes: a fork bomb in one can hold up the forks of others"


@cache
def landlock_abi() -> int:
    """Raises SandboxError where the kernel has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = int(libc.syscall(444, None, 0, 1))
    if abi < 0:
        raise SandboxError(f"this kernel gives no Landlock ({os.strerror(ctypes.get_errno())})")
    if abi < OLDEST_ABI:
        raise SandboxError(f"this kernel's Landlock has ABI {abi}; ABI {OLDEST_ABI} is needed (Linux 6.2 or newer)")
    return abi


def _without_hidden(python: PythonFiles) -> tuple[list[Path], list[Path]]:
    """(what may be read, folders of which only the names may be), as Landlock's rules only ever add: what is hidden
    lies in a folder that Python has to list."""
    readable: list[Path] = []
    listed: list[Path] = []
    todo = list(python.shown)
    while todo:
        path = todo.pop()
        if path in python.hidden:
            continue
        if any(hidden.is_relative_to(path) for hidden in python.hidden):
            listed.append(path)
            todo += path.iterdir()
        else:
            readable.append(path)
    return readable, listed
