"""What one box is asked to do, and what a backend makes of it: words to start and data to hand over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from grpo_core.errors import SandboxError
from grpo_core.sandbox.limits import Limits
from grpo_core.sandbox.reaper_client import MOST_FILES, Dropped


@dataclass(frozen=True, slots=True)
class BoxSpec:
    program: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    stdin: bytes
    limits: Limits
    packages: tuple[str, ...]
    held_open: bool

    def checked(self) -> "BoxSpec":
        """Raises SandboxError on a file that cannot lie below the box's folder."""
        if len(self.files) > MOST_FILES:
            raise SandboxError(f"{len(self.files)} files for one box; at most {MOST_FILES}")
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
                raise SandboxError(f"{name!r} is no path below the box's folder")
            if path.as_posix() == "program.py":
                raise SandboxError("program.py is the program itself; give the file another name")
        return self


@dataclass(frozen=True, slots=True)
class Recipe:
    words: tuple[str, ...]
    info_at: int | None
    """Which descriptor of the new process tells the reaper about the process inside."""
    data: tuple[bytes, ...]
    """Handed over as descriptors after stdin, stdout, stderr, the channel (and what the reaper adds)."""
    setup: dict[str, Any]
    """For the launcher."""
    environment: dict[str, str] = field(default_factory=dict)
    folder: bool = False
    """The reaper makes a folder for the box, names it in BOX, and removes it at the end."""


class Backend(Protocol):
    @property
    def dropped(self) -> Dropped: ...

    def recipe(self, spec: BoxSpec) -> Recipe: ...


def rlimits(limits: Limits, holders: int) -> list[tuple[str, int, int]]:
    """(name in the module `resource`, soft, hard). `holders`: processes that hold the box and count like its own."""
    return [
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", limits.cpu_seconds, limits.cpu_seconds + 1),
        ("RLIMIT_FSIZE", limits.file_bytes, limits.file_bytes),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_MSGQUEUE", 0, 0),
        ("RLIMIT_NPROC", limits.processes + holders, limits.processes + holders),
        ("RLIMIT_AS", limits.memory_bytes, limits.memory_bytes),
    ]
