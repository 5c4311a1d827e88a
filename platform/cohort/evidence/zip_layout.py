"""How a card's zip is laid out, byte by byte, so that nothing can hide between, before or after its entries; and how
large each part may be.

Every entry has the same date and attributes, no extra fields and no comment; entries follow each other without a gap.
A zip that differs in any byte outside the compressed contents is not as it was written.
"""

import os
import re
import struct
import zipfile
from dataclasses import dataclass
from typing import IO

from cohort.evidence import status

MAX_CARD_BYTES = 2_000_000_000
"""All files unpacked; below 2 GiB every number in the zip fits its 32 bits."""
MAX_RECORD_BYTES = 16 * 1024**2
MAX_CONFIG_BYTES = 2 * 1024**2
MAX_SMALL_BYTES = 16 * 1024**2
"""Each of the files that carry the proofs, and the schema."""
MAX_LINES_BYTES = 512 * 1024**2
"""Each of the files that numbers are computed from again."""
MAX_LINE_BYTES = 20 * 1024**2
"""More than the line of a record of 16 MiB, the largest that a worker may send."""
MAX_ITEMS = 500_000
"""Items in one evaluation file."""
MAX_TRACE_BYTES = 1024**3
"""All traces; what is beyond is left out, and the record notes it."""
MAX_TRACE_FILE_BYTES = 256 * 1024**2
MAX_ENTRIES = 65_000
MAX_NAME_LENGTH = 200

_MOST = {
    "record.json": MAX_RECORD_BYTES,
    "pipeline.json": MAX_RECORD_BYTES,
    "config.yaml": MAX_CONFIG_BYTES,
    "metrics.jsonl": MAX_LINES_BYTES,
    "evals/before.jsonl": MAX_LINES_BYTES,
    "evals/after.jsonl": MAX_LINES_BYTES,
    "evals/imported.jsonl": MAX_LINES_BYTES,
    "commitments.jsonl": MAX_LINES_BYTES,
    "judgements.jsonl": MAX_LINES_BYTES,
    "record.schema.json": MAX_SMALL_BYTES,
    "attestation.dsse.json": MAX_SMALL_BYTES,
    "keys.json": MAX_SMALL_BYTES,
    "log-entry.json": MAX_SMALL_BYTES,
    "proof.tlog-proof": MAX_SMALL_BYTES,
    "consistency.json": MAX_SMALL_BYTES,
    "model-signing.pub": MAX_SMALL_BYTES,
    "model.sig": MAX_SMALL_BYTES,
    "card.sig": MAX_SMALL_BYTES,
    **dict.fromkeys(status.FILES, status.MAX_BYTES),
}


def most_bytes(name: str) -> int:
    """The largest that the file `name` of a card may be."""
    return _MOST.get(name, MAX_CARD_BYTES)


MODE = 0o644 << 16

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_MADE_BY, _NEEDS, _UNIX = 20, 20, 3
_DOS_DATE, _DOS_TIME = (1 << 5) | 1, 0
_KIND = (zipfile.ZIP_DEFLATED, _DOS_TIME, _DOS_DATE)
NAME = re.compile(rb"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*")


class LayoutFault(Exception):
    """What in the zip's layout is not as a card is written."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    name: str
    start: int
    """Offset of its compressed content in the zip."""
    packed: int
    size: int
    crc: int


def local_head(name: str, *, crc: int, packed: int, size: int) -> bytes:
    """The head before an entry's deflated content, of `packed` bytes."""
    return _LOCAL.pack(b"PK\x03\x04", _NEEDS, 0, *_KIND, crc, packed, size, len(name), 0) + name.encode("ascii")


def central_entry(name: str, *, crc: int, packed: int, size: int, offset: int) -> bytes:
    """The entry's line in the directory; `offset` is where its local head begins."""
    same = (crc, packed, size, len(name))
    head = _CENTRAL.pack(b"PK\x01\x02", _MADE_BY, _UNIX, _NEEDS, 0, 0, *_KIND, *same, 0, 0, 0, 0, MODE, offset)
    return head + name.encode("ascii")


def end_record(*, count: int, length: int, offset: int) -> bytes:
    """The end of the zip: `count` entries in a directory of `length` bytes that begins at `offset`."""
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, length, offset, 0)


def read_layout(handle: IO[bytes]) -> list[ZipEntry]:
    """The zip's entries, when every byte outside their contents is as a card is written. Raises LayoutFault."""
    directory, count, directory_at = read_directory(handle)
    entries: list[ZipEntry] = []
    names: set[bytes] = set()
    at = offset = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(directory):
            raise LayoutFault("its directory is not as it was written")
        fields = _CENTRAL.unpack_from(directory, at)
        crc, packed, size, length = fields[9:13]
        name = directory[at + _CENTRAL.size : at + _CENTRAL.size + length]
        if length > MAX_NAME_LENGTH or not NAME.fullmatch(name):
            raise LayoutFault(f"{name[:MAX_NAME_LENGTH]!a} is not the name of a file in a card")
        if name in names:
            raise LayoutFault(f"{name.decode()!a} is there twice")
        names.add(name)
        entry_name = name.decode()
        central = central_entry(entry_name, crc=crc, packed=packed, size=size, offset=offset)
        if directory[at : at + len(central)] != central:
            raise LayoutFault(f"the entry of {entry_name!a} is not as it was written, or something lies before it")
        head = local_head(entry_name, crc=crc, packed=packed, size=size)
        handle.seek(offset)
        if handle.read(len(head)) != head:
            raise LayoutFault(f"the head of {entry_name!a} is not as it was written")
        entries.append(ZipEntry(entry_name, offset + len(head), packed, size, crc))
        offset += len(head) + packed
        if offset > directory_at:
            raise LayoutFault(f"{entry_name!a} is longer than the zip")
        at += len(central)
    if at != len(directory) or offset != directory_at:
        raise LayoutFault("something lies between its contents and its end")
    return entries


def read_directory(handle: IO[bytes]) -> tuple[bytes, int, int]:
    """(directory, number of entries, its offset), read from the end; nothing larger than a card's is read."""
    end_at = handle.seek(0, os.SEEK_END) - _END.size
    handle.seek(max(end_at, 0))
    end = handle.read(_END.size)
    if end_at < 0 or not end.startswith(b"PK\x05\x06"):
        raise LayoutFault("the zip is damaged: it was cut short, or something follows its end")
    count, length, offset = _END.unpack(end)[4:7]
    if end != end_record(count=count, length=length, offset=offset) or offset + length != end_at:
        raise LayoutFault("its end is not as it was written")
    if count > MAX_ENTRIES or length > count * (_CENTRAL.size + MAX_NAME_LENGTH):
        raise LayoutFault(f"it has more than {MAX_ENTRIES:,} entries, or names longer than {MAX_NAME_LENGTH} bytes")
    handle.seek(offset)
    return handle.read(length), count, offset
