"""A control group for each box where this process may make one: it alone bounds the memory of all processes of a box
together. It is an addition: without it the limits inside the box hold each process. Version 2 is taken where its
controllers are at hand, else version 1."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

_numbers = count()


@dataclass(frozen=True, slots=True)
class Group:
    """One folder of version 2, or one for memory and one for pids of version 1."""

    memory: Path | None
    pids: Path | None

    def take(self, pid: int) -> None:
        """Put a process in, before it starts others. Raises OSError."""
        for folder in {self.memory, self.pids} - {None}:
            assert folder is not None
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def memory_kills(self) -> int:
        return _count(self.memory, ("memory.events", "memory.oom_control"), "oom_kill")

    def refused_processes(self) -> int:
        return _count(self.pids, ("pids.events",), "max")

    def remove(self) -> None:
        """Once nothing is in it. The kernel may keep an empty one for a moment."""
        for folder in {self.memory, self.pids} - {None}:
            assert folder is not None
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break


def make(memory_bytes: int, processes: int) -> Group | None:
    """None where that is not allowed."""
    memory, pids = _parents()
    name = f"cohort-box-{os.getpid()}-{next(_numbers)}"
    group = Group(memory and memory / name, pids and pids / name)
    try:
        for folder in {group.memory, group.pids} - {None}:
            assert folder is not None
            folder.mkdir()
        if group.memory is not None:
            _limit(group.memory, ("memory.max", "memory.limit_in_bytes"), memory_bytes)
            with suppress(OSError):  # a kernel without accounting of swap
                _limit(group.memory, ("memory.swap.max", "memory.memsw.limit_in_bytes"),
                       0 if (group.memory / "memory.swap.max").exists() else memory_bytes)  # fmt: skip
        if group.pids is not None:
            _limit(group.pids, ("pids.max",), processes)
    except OSError:
        group.remove()
        return None
    return group if group.memory or group.pids else None


def possible() -> tuple[bool, bool]:
    """Whether memory, and whether the number of processes, can be bounded for a box."""
    memory, pids = _parents()
    return memory is not None, pids is not None


def _limit(folder: Path, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if (folder / name).exists():
            (folder / name).write_text(str(value), encoding="ascii")
            return
    raise FileNotFoundError(f"{folder} has none of {', '.join(names)}")


def _count(folder: Path | None, names: tuple[str, ...], word: str) -> int:
    for name in names if folder is not None else ():
        with suppress(OSError):
            assert folder is not None
            for line in (folder / name).read_text(encoding="ascii").splitlines():
                if line.startswith(f"{word} "):
                    return int(line.split()[1])
    return 0


@cache
def _parents() -> tuple[Path | None, Path | None]:
    """Where groups for (memory, pids) can be made by this process: tried once, by making one."""
    own = _own("")
    if own is not None and {"memory", "pids"} <= _words(own / "cgroup.subtree_control") and _may(own):
        return own, own
    memory, pids = _own("memory"), _own("pids")
    return (memory if memory and _may(memory) else None), (pids if pids and _may(pids) else None)


def _may(parent: Path) -> bool:
    trial = parent / f"cohort-box-trial-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    allowed = os.access(trial / "cgroup.procs", os.W_OK)
    trial.rmdir()
    return allowed


def _words(path: Path) -> set[str]:
    with suppress(OSError):
        return set(path.read_text(encoding="ascii").split())
    return set()


def _own(controller: str) -> Path | None:
    """Folder of this process's own group: of version 2 for "", else of that controller of version 1."""
    places: dict[str, Path] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, place, kind, options = line.split(" ")[:4]
            for name in [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []:
                places.setdefault(name, Path(place))
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and controller in places:
                return places[controller] / path.lstrip("/")
    return None
