"""Control groups: what a process starts cannot leave its group, as it can leave a session or a parent, and only a group
bounds the memory of many processes together.

They are an addition: where none may be made, as in most containers, callers do without. Version 2 is taken where it can
be used, else version 1's controllers.
"""

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self

_numbers = count()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One folder of version 2, or of version 1 one for each controller."""

    folders: tuple[Path, ...]

    @classmethod
    def make(cls, name: str) -> Self | None:
        """A group without limits in a single folder; None where that is not allowed."""
        for parent in (own_group(""), own_group("pids")):
            if parent is not None and _make(parent / name):
                return cls((parent / name,))
        return None

    @classmethod
    def make_limited(cls, memory_bytes: int, processes: int) -> Self | None:
        """A group with as many of these limits as `limits_possible` says; None where that is none."""
        memory, pids = _limit_parents()
        name = f"cohort-box-{os.getpid()}-{next(_numbers)}"
        group = cls(tuple({parent / name for parent in (memory, pids) if parent is not None}))
        try:
            for folder in group.folders:
                folder.mkdir()
            if memory is not None:
                swap = 0 if (memory / name / "memory.swap.max").exists() else memory_bytes
                _limit(memory / name, ("memory.max", "memory.limit_in_bytes"), memory_bytes)
                with suppress(OSError):  # a kernel without accounting of swap
                    _limit(memory / name, ("memory.swap.max", "memory.memsw.limit_in_bytes"), swap)
            if pids is not None:
                _limit(pids / name, ("pids.max",), processes)
        except OSError:
            group.remove()
            return None
        return group if group.folders else None

    def take(self, pid: int) -> None:
        """Put a process in, before it starts others. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def pids(self) -> list[int]:
        """Also of processes in groups below, which a process that is root could make."""
        pids: list[int] = []
        for folder in self.folders:
            for listed in [folder / "cgroup.procs", *folder.rglob("*/cgroup.procs")]:
                with suppress(OSError):
                    pids += [int(pid) for pid in listed.read_text(encoding="ascii").split()]
        return [pid for pid in pids if pid > 1]  # 0 stands for a process of another pid namespace

    def kill(self) -> None:
        """Every process at once, where the kernel can (5.14); nothing otherwise."""
        for folder in self.folders:
            with suppress(OSError):
                (folder / "cgroup.kill").write_text("1", encoding="ascii")

    def memory_kills(self) -> int:
        return self._count(("memory.events", "memory.oom_control"), "oom_kill")

    def refused_processes(self) -> int:
        return self._count(("pids.events",), "max")

    def remove(self) -> None:
        """Once it is empty. One that the kernel keeps for a moment is tried again; what stays harms nobody."""
        for folder in self.folders:
            for _ in range(100):
                try:
                    for path, _, _ in os.walk(folder, topdown=False):
                        os.rmdir(path)
                    break
                except OSError as error:
                    reason = error
                    time.sleep(0.01)
            else:
                log.warning("the control group %s stays: %s", folder, reason)

    def _count(self, names: tuple[str, ...], key: str) -> int:
        counts = (_count(folder / name, key) for folder in self.folders for name in names)
        return next((number for number in counts if number is not None), 0)


def limits_possible() -> tuple[bool, bool]:
    """Whether memory, and whether the number of processes, can be bounded."""
    memory, pids = _limit_parents()
    return memory is not None, pids is not None


def memory_kills() -> int:
    """How often the kernel has killed for want of memory in this process's own group, or on the whole machine where
    there is none. Only a difference means something."""
    files = ((own_group(""), "memory.events"), (own_group("memory"), "memory.oom_control"), (Path("/proc"), "vmstat"))
    counts = (_count(folder / name, "oom_kill") for folder, name in files if folder is not None)
    return next((number for number in counts if number is not None), 0)


def own_group(controller: str) -> Path | None:
    """Folder of this process's own group: of version 2 for "", else of that controller of version 1."""
    mount = _mounts().get(controller)
    if mount is None:
        return None
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return mount / path.lstrip("/")
    return None


@cache
def _mounts() -> dict[str, Path]:
    """Where version 2 ("") and each controller of version 1 are mounted."""
    mounts: dict[str, Path] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, folder, kind, options = line.split(" ")[:4]
            for name in [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []:
                mounts.setdefault(name, Path(folder))
    return mounts


@cache
def _limit_parents() -> tuple[Path | None, Path | None]:
    """Where groups with a limit of (memory, pids) can be made by this process: tried once, by making one."""
    own = own_group("")
    if own is not None and {"memory", "pids"} <= _subtree_controllers(own) and _may_make(own):
        return own, own
    memory, pids = own_group("memory"), own_group("pids")
    return (memory if memory and _may_make(memory) else None), (pids if pids and _may_make(pids) else None)


def _subtree_controllers(folder: Path) -> set[str]:
    with suppress(OSError):
        return set((folder / "cgroup.subtree_control").read_text(encoding="ascii").split())
    return set()


def _may_make(parent: Path) -> bool:
    trial = parent / f"cohort-box-trial-{os.getpid()}"
    made = _make(trial)
    if made:
        trial.rmdir()
    return made


def _make(folder: Path) -> bool:
    """Whether the group could be made, and processes can be put into it."""
    with suppress(OSError):
        folder.mkdir()
        if os.access(folder / "cgroup.procs", os.W_OK):
            return True
        folder.rmdir()
    return False


def _limit(folder: Path, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if (folder / name).exists():
            (folder / name).write_text(str(value), encoding="ascii")
            return
    raise FileNotFoundError(f"{folder} has none of {', '.join(names)}")


def _count(file: Path, key: str) -> int | None:
    with suppress(OSError):
        for line in file.read_text(encoding="ascii").splitlines():
            word, _, number = line.partition(" ")
            if word == key:
                return int(number)
    return None
