"""Files on their way into zips: each is compressed and hashed once, and copied into every card that holds it.

All compressed bytes are in one temporary file, so that neither a run's traces nor a card is ever whole in memory. A
zip's layout is that of `cohort.evidence.zip_layout`, which verification enforces.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from cohort.base.storable import Refused
from cohort.evidence.zip_layout import MAX_CARD_BYTES, MAX_ENTRIES, central_entry, end_record, local_head, most_bytes

LEVEL = 6
_COPY = 1 << 20


class CardTooLarge(Refused, code="card_too_large"):
    """A file of the card, or all together, would be larger than `cohort verify` accepts."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One file, compressed."""

    name: str
    """Its path in the zip."""
    sha256: str
    size: int
    crc: int
    offset: int
    """Start of its compressed bytes in the temporary file."""
    packed: int
    """Number of compressed bytes."""


class Pack:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: IO[bytes] = path.open("w+b")
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def add(self, name: str, chunks: Iterable[bytes], *, most: int | None = None) -> Packed:
        """Compress a file. Raises CardTooLarge when it is larger than `most` bytes, or than any file of that name may
        be."""
        most = most_bytes(name) if most is None else min(most, most_bytes(name))
        deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        digest, crc, size, offset = hashlib.sha256(), 0, 0, self._end
        self._handle.seek(offset)
        for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise CardTooLarge(f"{name} would be larger than the {most:,} bytes that a card has for it")
            digest.update(chunk)
            crc = zlib.crc32(chunk, crc)
            self._handle.write(deflate.compress(chunk))
        self._handle.write(deflate.flush())
        self._end = self._handle.tell()
        return Packed(name, digest.hexdigest(), size, crc, offset, self._end - offset)

    def whole(self, name: str, content: bytes) -> Packed:
        return self.add(name, [content])

    def zip(self, name: str, entries: Sequence[Packed], *, first: str = "record.json") -> Path:
        """Write a zip of these files, `first` first, next to the pack's own file. Raises CardTooLarge before the first
        byte."""
        if sum(entry.size for entry in entries) > MAX_CARD_BYTES or len(entries) > MAX_ENTRIES:
            raise CardTooLarge(f"the card would hold more than {MAX_CARD_BYTES:,} bytes or {MAX_ENTRIES:,} files")
        ordered = sorted(entries, key=lambda entry: (entry.name != first, entry.name))
        path = self._path.with_name(name)
        with path.open("wb") as handle:
            handle.writelines(self._zip(ordered))
        return path

    def _zip(self, entries: Sequence[Packed]) -> Iterator[bytes]:
        directory, offset = [], 0
        for entry in entries:
            head = local_head(entry.name, crc=entry.crc, packed=entry.packed, size=entry.size)
            fields = {"crc": entry.crc, "packed": entry.packed, "size": entry.size, "offset": offset}
            directory.append(central_entry(entry.name, **fields))
            yield head
            yield from self._content(entry)
            offset += len(head) + entry.packed
        lines = b"".join(directory)
        yield lines + end_record(count=len(entries), length=len(lines), offset=offset)

    def _content(self, entry: Packed) -> Iterator[bytes]:
        at, end = entry.offset, entry.offset + entry.packed
        while at < end:
            self._handle.seek(at)
            chunk = self._handle.read(min(_COPY, end - at))
            at += len(chunk)
            yield chunk
