"""Room on the disk: checked before much is written, reported in one way where it has run out, and appending to files so
that they stay readable when it does. Loads no torch."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_core.errors import DiskFullError
from grpo_core.text import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_SAFETENSORS_FULL = tuple(f"os error {number}" for number in _FULL)
"""How the safetensors library, which is written in Rust, ends its message."""


def is_full(error: BaseException) -> bool:
    """Whether the error says that the disk, or the quota on it, has no room left."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return type(error).__name__ == "SafetensorError" and any(word in str(error) for word in _SAFETENSORS_FULL)


def disk_full(folder: Path, doing: str) -> DiskFullError:
    """The error to raise when `doing` ("writing …") found no room in `folder`."""
    return DiskFullError(
        f"the disk of {folder} is full: no room for {doing}. Free some space there, then resume or run it again"
    )


@contextmanager
def raise_when_full(folder: Path, doing: str) -> Iterator[None]:
    """Inside, an error that says that the disk is full becomes a DiskFullError; every other stays what it is."""
    try:
        yield
    except Exception as error:
        if is_full(error):
            raise disk_full(folder, doing) from error
        raise


def need_room(folder: Path, size: int, doing: str) -> None:
    """Raise DiskFullError when fewer than `size` bytes are free in `folder`, which must exist."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DiskFullError(
            f"the disk of {folder} has {format_bytes(free)} left and {doing} needs {format_bytes(size)}. "
            "Free some space there, then resume or run it again"
        )


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it; one call to the system may write less."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def append_all(parts: Mapping[Path, Sequence[bytes]]) -> None:
    """Append to several files durably, to all of them or to none. Raises OSError."""
    begun: list[tuple[Path, int, int | None]] = []  # path, descriptor, its size before (None: it was not there)
    try:
        for path, content in parts.items():
            size = path.stat().st_size if path.exists() else None
            begun.append((path, os.open(path, _APPEND, 0o644), size))
            write_all(begun[-1][1], b"".join(content))
        for _, descriptor, _ in begun:
            os.fsync(descriptor)
        for folder in {path.parent for path, _, size in begun if size is None}:
            fsync(folder)
    except OSError:
        for path, descriptor, size in begun:
            os.ftruncate(descriptor, size or 0)
            if size is None:
                path.unlink()
        raise
    finally:
        for _, descriptor, _ in begun:
            os.close(descriptor)


def append_each(path: Path, parts: list[bytes]) -> None:
    """Append durably to a file that is read meanwhile: where room ends, whole parts stay in it. Takes those that are in
    the file out of `parts`. Raises OSError."""
    new = not path.exists()
    descriptor = os.open(path, _APPEND, 0o644)
    try:
        whole = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, b"".join(parts))
        finally:
            size = os.fstat(descriptor).st_size
            while parts and whole + len(parts[0]) <= size:
                whole += len(parts.pop(0))
            if whole < size:
                os.ftruncate(descriptor, whole)
            os.fsync(descriptor)
            if new:
                fsync(path.parent)
    finally:
        os.close(descriptor)


def fsync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
