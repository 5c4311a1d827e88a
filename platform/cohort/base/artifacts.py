"""Files that are too large for the database: uploaded datasets, cards, checkpoints. They are at an fsspec address.

A key is made by us (`datasets/<sha256>`, `cards/<run>.zip`, `checkpoints/run-<id>/…`), never by a person.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem

from cohort.base.environment import environment
from grpo_core.errors import DiskFullError
from grpo_core.files.disk import is_full

_ENOUGH = 2 * 1024**3
_UNSTORED = "Nothing of this was stored. Whoever runs the server must make room first."
FULL = f"The server's disk is full. {_UNSTORED}"


@dataclass(frozen=True)
class Stored:
    key: str
    sha256: str
    size: int


def _filesystem() -> tuple[Any, str]:
    return cast("tuple[Any, str]", fsspec.core.url_to_fs(environment().artifacts_url, auto_mkdir=True))


def is_short() -> bool:
    """Whether less room is left than `min_free_bytes`; never for a store that is no folder."""
    filesystem, root = _filesystem()
    if not isinstance(filesystem, LocalFileSystem):
        return False
    folder = next(folder for folder in (Path(root), *Path(root).parents) if folder.exists())
    disk, least = shutil.disk_usage(folder), environment().min_free_bytes
    return disk.free < (min(_ENOUGH, disk.total // 20) if least is None else least)


def put(key: str, chunks: Iterable[bytes], *, to_the_last: bool = False) -> Stored:
    """Store under `key`; what is readable there is always whole: written to a temporary file, then moved.

    Raises DiskFullError, and nothing is stored, when the disk is full; unless `to_the_last`, when it is nearly full.
    """
    if not to_the_last and is_short():
        raise DiskFullError(f"The server's disk is nearly full. {_UNSTORED}")
    filesystem, root = _filesystem()
    digest, size = hashlib.sha256(), 0
    temporary = f"{root}/{key}.{uuid4().hex}.part"  # two uploads of one file may run at once
    try:
        with filesystem.open(temporary, "wb") as handle:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                handle.write(chunk)
        filesystem.mv(temporary, f"{root}/{key}")
    except BaseException as error:  # also when the process is terminated
        with suppress(FileNotFoundError):
            filesystem.rm_file(temporary)
        if is_full(error):
            raise DiskFullError(FULL) from error
        raise
    return Stored(key, digest.hexdigest(), size)


def open_read(key: str) -> IO[bytes]:
    filesystem, root = _filesystem()
    return cast("IO[bytes]", filesystem.open(f"{root}/{key}", "rb"))


def read_chunks(key: str, size: int = 1 << 20) -> Iterator[bytes]:
    with open_read(key) as handle:
        while chunk := handle.read(size):
            yield chunk


def remove(key: str) -> None:
    filesystem, root = _filesystem()
    filesystem.rm_file(f"{root}/{key}")


def exists(key: str) -> bool:
    filesystem, root = _filesystem()
    return bool(filesystem.exists(f"{root}/{key}"))


def sizes(folder: str) -> dict[str, int]:
    """Files directly in a folder, by name, in bytes; those still being written are left out. Empty: no such folder."""
    return {name: size for name, size in _listed(folder) if size is not None and not name.endswith(".part")}


def unfinished(folder: str) -> list[str]:
    """Names of the files directly in a folder that are being written, or that a killed process left half-written."""
    return [name for name, size in _listed(folder) if size is not None and name.endswith(".part")]


def folders(folder: str) -> list[str]:
    """Names of the folders directly in a folder."""
    return [name for name, size in _listed(folder) if size is None]


def remove_folder(folder: str) -> None:
    """Remove a folder with all that is in it; a missing one is no error."""
    filesystem, root = _filesystem()
    try:
        filesystem.rm(f"{root}/{folder}", recursive=True)
    except FileNotFoundError:
        return


def _listed(folder: str) -> list[tuple[str, int | None]]:
    """Name and size of each entry; a folder has no size."""
    filesystem, root = _filesystem()
    filesystem.invalidate_cache()  # object stores keep listings, and another process may have written since
    try:
        entries = filesystem.ls(f"{root}/{folder}", detail=True)
    except FileNotFoundError:
        return []
    return [
        (entry["name"].rstrip("/").rpartition("/")[2], None if entry["type"] == "directory" else int(entry["size"]))
        for entry in entries
    ]
