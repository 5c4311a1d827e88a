"""Real disks that run full: a tmpfs of a size, mounted as long as it is needed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
