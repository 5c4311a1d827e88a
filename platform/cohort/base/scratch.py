"""Temporary folders: a card being built, an upload being checked. Knows no Django.

They lie under the home and not among the system's temporary files, so that what a killed process left is found again:
each folder is held by a lock that ends with its process, and making the next one removes those that no process
holds. Age does not matter: a folder whose process lives is left alone, however long it takes.
"""

import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cohort.base.artifacts import FULL
from cohort.base.environment import environment
from grpo_core.errors import DiskFullError
from grpo_core.files.disk import is_full

_LOCK = ".lock"
_log = logging.getLogger(__name__)


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """An empty folder that is removed when the block ends, below `scratch/<purpose>/` of the home. What processes that
    were killed left there is removed first; what cannot be removed is logged and stays.

    Raises OSError where the home cannot be written to, DiskFullError when what is written there finds no room.
    """
    parent = environment().home_folder / "scratch" / purpose
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(parent):
        _left_over_removed(parent)
        folder = Path(tempfile.mkdtemp(dir=parent))
        held = _lock(folder)
    with held:
        try:
            work = folder / "work"
            work.mkdir()
            yield work
        except OSError as error:
            if is_full(error):
                raise DiskFullError(FULL) from error
            raise
        finally:
            with _alone(parent):
                shutil.rmtree(folder)


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """One at a time makes or removes folders here, so that none is seen between its making and its lock."""
    with (parent / _LOCK).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _lock(folder: Path) -> IO[str]:
    """The folder's lock, held until the handle is closed or the process ends. Raises BlockingIOError when another
    process holds it."""
    handle = (folder / _LOCK).open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise
    return handle


def _left_over_removed(parent: Path) -> None:
    for folder in sorted(path for path in parent.iterdir() if path.is_dir()):
        try:
            with _lock(folder):
                shutil.rmtree(folder)
        except BlockingIOError:  # its process lives
            continue
        except OSError as error:
            _log.warning("%s was left by a process that ended, and cannot be removed: %s", folder, error)
        else:
            _log.warning("%s was left by a process that ended; it is removed", folder)
