"""Which files of this machine a boxed Python needs: the interpreter, its standard library, the system's shared
libraries, and the distributions that a caller allows, with what those need. Nothing else is ever shown to a box."""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from grpo_core.errors import SandboxError

PACKAGES = "/packages"
"""Where allowed distributions lie in the box."""


@dataclass(frozen=True, slots=True)
class PythonFiles:
    executable: Path
    shown: tuple[Path, ...]
    """Files and folders that are in the box at the same path, read-only."""
    hidden: tuple[Path, ...]
    """Folders below those that are covered by empty ones: other distributions."""
    links: tuple[tuple[str, str], ...]
    """(path, where it points), for /lib and its kind."""
    libraries: str | None
    """Folder for LD_LIBRARY_PATH, where the interpreter is linked to a library that the loader would not find."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The interpreter's own folder, and those of the system."""
        base = Path(sys.base_prefix)
        return tuple(sorted({base if path.is_relative_to(base) else path for path in self.shown}))


@cache
def python_files() -> PythonFiles:
    """Raises SandboxError where the layout of the interpreter is not understood."""
    base = Path(sys.base_prefix)
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(base), "base": str(base)}))
    dynamic = Path(sysconfig.get_path("platstdlib", vars={"installed_platbase": str(base), "platbase": str(base)}))
    if not (library / "os.py").is_file():
        raise SandboxError(f"Python's standard library is not at {library}, so it cannot be shown to a sandbox")
    shown = [executable]
    shared = None
    if base in (Path("/usr"), Path("/")):
        shown += [library, dynamic]
    else:
        shown += [base / library.relative_to(base).parts[0], base / dynamic.relative_to(base).parts[0]]
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            shared = sysconfig.get_config_var("LIBDIR")
    folders, links = _system_libraries()
    shown = _outermost([*shown, *folders])
    hidden = sorted({
        folder
        for path in shown
        if path.is_dir()
        for pattern in ("site-packages", "dist-packages", "python*/site-packages", "python*/dist-packages")
        for folder in path.glob(pattern)
        if folder.is_dir() and not folder.is_symlink()
    })  # fmt: skip
    return PythonFiles(executable, tuple(shown), tuple(hidden), links, shared)


def _system_libraries() -> tuple[list[Path], tuple[tuple[str, str], ...]]:
    """Folders with the C library and what lies next to it, and the links of a merged /usr."""
    triplet = sysconfig.get_config_var("MULTIARCH")
    links = tuple((name, os.readlink(name)) for name in ("/lib", "/lib64") if os.path.islink(name))
    candidates = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64") if triplet else ("/lib64",)
    folders = [Path(name).resolve() for name in candidates if os.path.isdir(name)]
    if not any(next(folder.glob("libc.so*"), None) for folder in folders):
        raise SandboxError(
            f"no C library in {', '.join(map(str, folders)) or 'the usual folders'}: a sandbox needs one"
        )
    return _outermost(folders), links


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Without duplicates and paths below another."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def package_roots() -> tuple[Path, ...]:
    """Folders in which distributions may lie."""
    paths = (Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return tuple(_outermost(path.resolve() for path in paths if path.is_dir()))


def package_files(names: Iterable[str]) -> tuple[tuple[Path, str], ...]:
    """(file or folder here, its path in the box) of the distributions and of all that they need.

    Raises SandboxError for one that is not installed, or is only a link to a folder of source code.
    """
    return _package_files(tuple(sorted(set(names))))


@cache
def _package_files(names: tuple[str, ...]) -> tuple[tuple[Path, str], ...]:
    places: dict[str, Path] = {}
    for distribution in _closure(names):
        before = len(places)
        files = [file for file in distribution.files or [] if ".." not in file.parts and not file.is_absolute()]
        tops = {file.parts[0] for file in files} - {"__pycache__"}
        for top in tops:
            here = Path(str(distribution.locate_file(top)))
            if here.suffix == ".pth" or here.name.startswith("__editable__"):
                continue
            if here.is_dir() and not here.suffix and not (here / "__init__.py").exists():
                below = {file.parts[1] for file in files if file.parts[0] == top and len(file.parts) > 1}
                places.update((f"{top}/{name}", here / name) for name in below if (here / name).exists())
            elif here.exists():
                places[top] = here
        importable = [top for top in tops if not top.endswith((".dist-info", ".egg-info", ".pth"))]
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
        if len(places) == before or not importable or source.get("dir_info", {}).get("editable"):
            name = distribution.metadata["Name"]
            raise SandboxError(
                f"packages: {name} has no files of its own here (an editable install?); install it as a wheel"
            )
    return tuple((here, f"{PACKAGES}/{name}") for name, here in sorted(places.items()))


_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def _closure(names: Iterable[str]) -> list[metadata.Distribution]:
    distributions: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(name, True) for name in names]
    while todo:
        requirement, required = todo.pop()
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise SandboxError(f"packages: {requirement!r} is no name of a distribution")
        name, extras = _plain(match[1]), {_plain(extra) for extra in (match[2] or "").split(",") if extra.strip()}
        try:
            distribution = metadata.distribution(match[1])
        except metadata.PackageNotFoundError:
            if required:
                raise SandboxError(f"packages: {match[1]} is not installed here") from None
            continue  # for another platform or Python; if not, the import inside the box names it
        distributions[name] = distribution
        for extra in extras | {""}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in distribution.requires or []:
                marker = _EXTRA.search(line)
                if (_plain(marker[1]) if marker else "") == extra:
                    todo.append((line, False))
    return [distributions[name] for name in sorted(distributions)]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
