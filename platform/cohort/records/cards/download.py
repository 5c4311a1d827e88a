"""A card as it is handed out: its stored bytes up to the zip's directory, then the files of its record's status, then a
directory of both. Nothing of a card leaves the platform by another way."""

import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from cohort.base import artifacts
from cohort.evidence.canonical import sha256
from cohort.evidence.status import FILE, PAGE, PAPER
from cohort.evidence.zip_layout import central_entry, end_record, local_head, read_directory
from cohort.records.cards.pack import LEVEL
from cohort.records.models import Card, RecordStatus
from cohort.records.status.services import current_status, handed_out

_CHUNK = 1 << 20


class Download:
    """One download, to be read once."""

    def __init__(self, card: Card, status: RecordStatus, handle: IO[bytes]) -> None:
        self._handle = handle
        directory, count, self._contents = read_directory(handle)
        content = handed_out(status).encode()
        files = {PAGE: status.page.encode(), PAPER: bytes(status.paper), FILE: content}
        self._tail = _tail(directory, count, self._contents, files)
        self.size = self._contents + len(self._tail)
        """Bytes of the zip."""
        self.tag = f"{card.sha256}-{sha256(content)[:16]}"
        """Names these bytes: those of the stored card and of this status."""

    def __iter__(self) -> Iterator[bytes]:
        left = self._contents
        self._handle.seek(0)
        while left > 0 and (chunk := self._handle.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
        if left:
            raise OSError(f"the stored card ended {left:,} bytes early")
        yield self._tail

    def close(self) -> None:
        self._handle.close()


def download(card: Card) -> Download:
    """Raises StatusPending while the record's status is being signed, and FileNotFoundError for a card that is no
    longer stored."""
    status = current_status(card.record, card.audience)
    handle = artifacts.open_read(card.artifact)
    try:
        return Download(card, status, handle)
    except BaseException:  # whatever it was, the file must not stay open; it is raised again
        handle.close()
        raise


def write_download(card: Card, path: Path) -> None:
    """The same, to a file."""
    with closing(download(card)) as made, path.open("wb") as file:
        file.writelines(made)


def _tail(directory: bytes, count: int, at: int, files: dict[str, bytes]) -> bytes:
    """All that follows the stored card's contents."""
    contents, lines = b"", directory
    for name, content in files.items():
        deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = deflate.compress(content) + deflate.flush()
        facts = {"crc": zlib.crc32(content), "packed": len(packed), "size": len(content)}
        lines += central_entry(name, **facts, offset=at + len(contents))
        contents += local_head(name, **facts) + packed
    return contents + lines + end_record(count=count + len(files), length=len(lines), offset=at + len(contents))
