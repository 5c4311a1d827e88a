"""verify.pyz: the check of a card as one file that needs Python and `cryptography` and nothing else.

Made from the installed modules, every module that the check imports and no other. Its bytes depend on their sources
alone: the same release gives the same file everywhere, so that its digest can be compared.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import io
import sys
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path

NAME = "verify.pyz"
_START = "cohort.evidence.verify.command"
_OURS = ("cohort", "grpo_core")
_WHOLE = {"rfc8785": "rfc8785", "yaml": "PyYAML"}
"""Packages of others that go in whole, pure Python as they are, and their distributions, for the licences."""
_NEEDED = frozenset({"cryptography"})
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = """\
import sys

if sys.version_info < (3, 11):
    print("verify.pyz: cannot check: it needs Python 3.11 or newer", file=sys.stderr)
    sys.exit(2)
try:
    import cryptography
except ImportError:
    advice = "python3 -m pip install cryptography"
    print(f"verify.pyz: cannot check: it needs the package cryptography: {advice}", file=sys.stderr)
    sys.exit(2)
from cohort.evidence.verify.command import main

sys.exit(main(prog="verify.pyz"))
"""


class NotSelfContained(Exception):
    """The check imports a module that verify.pyz must not need: a defect of ours."""


@cache
def build() -> bytes:
    """The file's bytes, the same each time."""
    schema = resources.files("cohort.evidence") / "record.schema.json"
    files = {"__main__.py": _MAIN.encode(), "cohort/evidence/record.schema.json": schema.read_bytes()}
    for module, path in _imported().items():
        tail = "/__init__.py" if path.name == "__init__.py" else ".py"
        files[module.replace(".", "/") + tail] = path.read_bytes()
    for package, distribution in _WHOLE.items():
        folder = _path(package).parent
        files |= {f"{package}/{path.name}": path.read_bytes() for path in folder.glob("*.py")}
        files |= {f"licences/{distribution}.txt": text.encode() for text in [_licence(distribution)]}
    out = io.BytesIO(_SHEBANG)
    out.seek(0, io.SEEK_END)
    with zipfile.ZipFile(out, "a") as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, files[name])  # not compressed, which differs between versions of zlib
    return out.getvalue()


def digest() -> str:
    """sha256 of the file, in hex."""
    return hashlib.sha256(build()).hexdigest()


def _imported() -> dict[str, Path]:
    """Module → file, of all of ours that the check imports. Raises NotSelfContained."""
    files: dict[str, Path] = {}
    waiting = [_START]
    while waiting:
        module = waiting.pop()
        package, _, _ = module.partition(".")
        if module in files or package in sys.stdlib_module_names or package in _NEEDED or package in _WHOLE:
            continue
        if package not in _OURS:
            raise NotSelfContained(f"the check of a card imports {module}, which is not part of {NAME}")
        files[module] = _path(module)
        waiting += _imports(files[module])
        if parent := module.rpartition(".")[0]:
            waiting.append(parent)
    return files


def _imports(path: Path) -> list[str]:
    """Modules that a file imports, by its text: nothing is run."""
    modules = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules += [name for name in inner if name.startswith(_OURS) and _is_module(name)]
    return modules


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise NotSelfContained(f"{module} has no Python source to put into {NAME}")
    return Path(spec.origin)


def _licence(distribution: str) -> str:
    """Raises NotSelfContained when the installed package came without its licence."""
    for file in importlib.metadata.files(distribution) or ():
        if file.name.upper().startswith("LICENSE") and ".dist-info" in str(file):
            return file.read_text()
    raise NotSelfContained(f"{distribution} is installed without its licence, which {NAME} must carry")


def main() -> int:
    """`python -m cohort.evidence.pyz FILE` writes it."""
    Path(sys.argv[1]).write_bytes(build())
    print(f"{digest()}  {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
