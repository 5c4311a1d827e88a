"""The request for one box, and what a backend makes of it: a command to start and data to pass to it."""

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePosixPath
from types import CodeType
from typing import Any, Protocol

from grpo_core.errors import SandboxError
from grpo_core.sandbox.limits import Limits
from grpo_core.sandbox.reaper_client import MOST_FILES, Dropped


def _compiled(name: str) -> CodeType:
    text = resources.files("grpo_core.sandbox").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return compile(text, f"<{name}>", "exec", dont_inherit=True, optimize=0)


BOOT = """import marshal,os
n=int.from_bytes(os.read(3,4),"big")
b=b""
while len(b)<n:b+=os.read(3,n-len(b)) or os._exit(0)
exec(marshal.loads(b))"""
"""What `python -c` is given: it takes the launcher from the channel. Nothing runs when the other side is gone."""
FLAGS = ("-P", "-s", "-S", "-X", "utf8", "-c", BOOT)
"""As -I, which would ignore the variable below; the environment holds nothing else of Python's."""
HASHES = ("PYTHONHASHSEED", "0")
"""Sets and dictionaries of a program come in the same order in every box: its output must not depend on that."""
LAUNCHER = marshal.dumps(_compiled("launcher"))
CHANNEL_TEXT, LANDLOCK_CHILD = _compiled("channel"), _compiled("landlock_child")


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
    """Which descriptor of the new process reports the process inside to the reaper."""
    data: tuple[bytes, ...]
    """Passed as descriptors after stdin, stdout, stderr, the channel (and what the reaper adds)."""
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
