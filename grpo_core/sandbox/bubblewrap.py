"""The arguments that bubblewrap makes a box from: every namespace separate, no capability, and a root that holds
Python, what was allowed, and nothing else of this machine. There is no /proc, no device but three, no /etc."""

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from grpo_core.errors import SandboxError
from grpo_core.runtime import cgroups
from grpo_core.sandbox import seccomp
from grpo_core.sandbox.python_files import PACKAGES, PythonFiles, package_files, package_roots, python_files
from grpo_core.sandbox.reaper_client import Dropped, drop
from grpo_core.sandbox.spec import CHANNEL_TEXT, FLAGS, HASHES, BoxSpec, Recipe, rlimits

PROGRAM = "/box/program.py"
INFO, SECCOMP, FIRST_FILE = 4, 5, 6
"""Descriptors that bubblewrap gets, after 0, 1, 2 and the channel as 3."""


class Bubblewrap:
    def __init__(self) -> None:
        """Raises SandboxError when bubblewrap is not installed or this machine's calls are not known."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError("bubblewrap is not installed")
        python = python_files()
        self.bwrap = Path(bwrap).resolve()
        self.dropped: Dropped = drop([Path(bwrap).resolve().parent, *python.roots, *package_roots()])
        self._moved = self.dropped.moved
        self._fixed = _fixed(seen(self.bwrap, self._moved), python, self._moved)
        self._start = [str(python.executable), *FLAGS]
        self._filter = seccomp.program(platform.machine())

    def recipe(self, spec: BoxSpec) -> Recipe:
        words = list(self._fixed)
        for here, target in package_files(spec.packages):
            words += ["--ro-bind", seen(here, self._moved), target]
        data = [self._filter, spec.program.encode("utf-8", "surrogatepass")]
        words += ["--dir", "/box", "--file", str(FIRST_FILE), PROGRAM]
        files = {f"/box/{path}": content for path, content in spec.files.items()}
        if spec.stdin:
            files["/dev/stdin"] = spec.stdin
        else:
            words += ["--symlink", "/dev/null", "/dev/stdin"]
        for number, (path, content) in enumerate(files.items(), FIRST_FILE + 1):
            words += ["--file", str(number), path]
            data.append(content)
        words += [
            "--size", str(spec.limits.tmp_bytes), "--perms", "0700", "--tmpfs", "/tmp", "--remount-ro", "/",
            "--chdir", "/box", *self._start,
        ]  # fmt: skip
        setup = {
            # Bubblewrap's own process counts among the box's. With one more the group refuses first, and reports it.
            "limits": rlimits(spec.limits, holders=2 if cgroups.limits_possible()[1] else 1),
            "helper": CHANNEL_TEXT if spec.held_open else None,
            "argv": [*(["3"] if spec.held_open else []), *spec.arguments],
            "path": [PACKAGES] if spec.packages else [],
            "landlock_child": None,
        }
        return Recipe(tuple(words), INFO, tuple(data), setup)


def _fixed(bwrap: str, python: PythonFiles, moved: Mapping[Path, str]) -> list[str]:
    """What is the same for every box. `moved`: where a path of this machine is seen by bubblewrap, if elsewhere."""
    words = [
        bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent",
        "--cap-drop", "ALL", "--clearenv", "--hostname", "box", "--info-fd", str(INFO), "--seccomp", str(SECCOMP),
    ]  # fmt: skip
    for shown in python.shown:
        words += ["--ro-bind", seen(shown, moved), str(shown)]
    for hidden in python.hidden:
        words += ["--tmpfs", str(hidden)]
    for path, target in python.links:
        words += ["--symlink", target, path]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        words += ["--dev-bind", device, device]
    words += ["--symlink", "/tmp", "/dev/shm", "--symlink", "urandom", "/dev/random"]
    if python.libraries:
        words += ["--setenv", "LD_LIBRARY_PATH", python.libraries]
    for name, value in (("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"), ("PATH", "/nonexistent"), HASHES):
        words += ["--setenv", name, value]
    return words


def seen(path: Path, moved: Mapping[Path, str]) -> str:
    for root, elsewhere in moved.items():
        if path.is_relative_to(root):
            return str(Path(elsewhere) / path.relative_to(root))
    return str(path)
