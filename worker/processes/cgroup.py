"""A control group of the trainer's own, where this worker may make one: nothing that it starts can leave it.

Sessions and parents can be left by a process that wants to; a control group cannot. It is an addition: a worker that
may not make one (most containers) goes without. Version 2 is taken when it is there, else version 1's `pids`.
"""

import logging
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

log = logging.getLogger(__name__)


class Cgroup:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, name: str) -> Self | None:
        """None where that is not allowed."""
        for parent in filter(None, (own_group(""), own_group("pids"))):
            folder = parent / name
            try:
                folder.mkdir()
                if os.access(folder / "cgroup.procs", os.W_OK):
                    return cls(folder)
                folder.rmdir()
            except OSError:
                continue
        return None

    def pids(self) -> list[int]:
        """Also of processes in groups below, which a trainer that is root could make."""
        found = []
        for listed in [self.folder / "cgroup.procs", *self.folder.rglob("*/cgroup.procs")]:
            with suppress(OSError):
                found += [int(pid) for pid in listed.read_text(encoding="ascii").split()]
        return [pid for pid in found if pid > 1]  # 0 stands for a process of another pid namespace

    def kill(self) -> None:
        """Every process at once, where the kernel can (5.14); nothing otherwise."""
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> None:
        """Once it is empty. One that the kernel keeps for a moment is tried again; what stays harms nobody."""
        for _ in range(20):
            try:
                for folder in sorted(self.folder.rglob("*/"), reverse=True):
                    if folder.is_dir():
                        folder.rmdir()
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                reason = error
                time.sleep(0.05)
            else:
                return
        log.warning("the control group %s stays: %s", self.folder, reason)


def memory_kills() -> int:
    """How often the kernel has killed for want of memory in this worker's own group, or on the whole machine where
    there is none. Only a difference says something."""
    for place, name in (
        (own_group(""), "memory.events"),
        (own_group("memory"), "memory.oom_control"),
        (Path("/proc"), "vmstat"),
    ):
        if place is None:
            continue
        with suppress(OSError):
            for line in (place / name).read_text(encoding="ascii").splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill":
                    return int(count)
    return 0


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
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, options = line.split(" ")[:4]
        if kind == "cgroup2":
            found.setdefault("", Path(place))
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, Path(place))
    return found
