"""Room on the disk of the runs: a full disk pauses a run in words, before it fails in the middle of a write."""

import shutil
from pathlib import Path

_ENOUGH = 2 * 1024**3


def free_bytes(folder: Path) -> int:
    """Left for this user on the disk that holds the folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def least_free(folder: Path, given: int | None) -> int:
    """Below so many bytes nothing trains: as given, or 2 GiB, or 5 % of the disk where that is less."""
    return given if given is not None else min(_ENOUGH, shutil.disk_usage(_existing(folder)).total // 20)


def is_short(folder: Path, given: int | None) -> bool:
    return free_bytes(folder) < least_free(folder, given)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
