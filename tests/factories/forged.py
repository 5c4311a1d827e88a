"""Cards that somebody changed on their way, as files on disk."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.factories.small_cards import packed


def each_changed(path: Path) -> Iterator[tuple[str, Path]]:
    """(file, card with one byte of that file's content changed), for every file of the card."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    for name, content in files.items():
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        out = path.with_name("changed.zip")
        out.write_bytes(packed({**files, name: bytes(changed)}))
        yield name, out
