"""Real disks that run full: a tmpfs of a size, mounted as long as it is needed."""

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from tests.needs import needs


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """`folder`, made for this, as a disk of `size` bytes that nothing else uses."""
    needs("root")
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "cohort-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all that is left of the disk."""
    path = folder / "other"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return path


@contextmanager
def table_on(table: str, size: int) -> Iterator[Path]:
    """A table of the tests' database on a disk of `size` bytes while the block runs. For tests that commit."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW data_directory")
        owner = Path(cursor.fetchone()[0]).stat()
    with tempfile.TemporaryDirectory() as parent:  # the server's user may enter none of pytest's folders
        os.chmod(parent, 0o711)
        with small_disk(Path(parent) / "disk", size) as disk:
            (disk / "tables").mkdir(mode=0o700)
            os.chown(disk / "tables", owner.st_uid, owner.st_gid)
            space = f"cohort_test_{os.getpid()}"
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE TABLESPACE {space} LOCATION '{disk / 'tables'}'")
                cursor.execute(f"ALTER TABLE {table} SET TABLESPACE {space}")
            try:
                yield disk
            finally:
                with connection.cursor() as cursor:
                    cursor.execute(f"ALTER TABLE {table} SET TABLESPACE pg_default")
                    cursor.execute(f"DROP TABLESPACE {space}")
