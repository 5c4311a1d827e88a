"""A card's files, read within bounds. A card comes from anywhere: what is too large or cannot be read is rejected."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import IO, Any

from cohort.evidence.zip_layout import MAX_CARD_BYTES, MAX_LINE_BYTES, LayoutFault, ZipEntry, most_bytes, read_layout

RECORD_FILE = "record.json"
_PACKED = 1 << 16
_CHUNK = 1 << 20


class Rejected(Exception):
    """What a check found, one fault a line."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Cannot(Exception):
    """Why a check cannot be made: something that it needs is not there. No judgement on the card. One fact a line."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class CardReader:
    def __init__(self, handle: IO[bytes], main: str = RECORD_FILE) -> None:
        """`main`: the file without which the zip is no card."""
        self._handle, self._main = handle, main
        self.entries: dict[str, ZipEntry] = {}
        self._digests: dict[str, str] = {}

    def open(self) -> str:
        """Read the layout and test every size, before any content is read."""
        try:
            self.entries = {entry.name: entry for entry in read_layout(self._handle)}
        except LayoutFault as fault:
            raise Rejected(str(fault)) from None
        for entry in self.entries.values():
            if entry.size > (most := most_bytes(entry.name)):
                raise Rejected(f"{entry.name}: larger than {most:,} bytes")
        if sum(entry.size for entry in self.entries.values()) > MAX_CARD_BYTES:
            raise Rejected(f"it would unpack to more than {MAX_CARD_BYTES:,} bytes")
        if self._main not in self.entries:
            raise Rejected(f"there is no {self._main}")
        return f"{len(self.entries)} files, none twice, and no byte between them"

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content, with the length, the packed length and the CRC that the zip states."""
        entry = self.entries.get(name)
        if entry is None:
            raise Rejected(f"there is no {name}")
        offset, end = entry.start, entry.start + entry.packed
        size, crc, inflate = 0, 0, zlib.decompressobj(-zlib.MAX_WBITS)
        while not inflate.eof:
            packed = inflate.unconsumed_tail
            if not packed:
                self._handle.seek(offset)
                packed = self._handle.read(min(_PACKED, end - offset))
                offset += len(packed)
            try:
                chunk = inflate.decompress(packed, _CHUNK)
            except zlib.error as error:
                raise Rejected(f"{name}: cannot be unpacked: {error}") from None
            size += len(chunk)
            if size > entry.size or not (packed or chunk):
                raise Rejected(f"{name}: cannot be unpacked: its content is not {entry.size:,} bytes long")
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if inflate.unused_data or offset != end:
            raise Rejected(f"{name}: something follows its content")
        if (size, crc) != (entry.size, entry.crc):
            raise Rejected(f"{name}: cannot be unpacked: its length or CRC is not the one in the zip")

    def whole(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def needed(self, name: str) -> bytes:
        """The content of a file that a check needs. Raises Cannot when the card has none."""
        if name not in self.entries:
            raise Cannot(f"there is no {name} in the card")
        return self.whole(name)

    def sha256(self, name: str) -> str:
        """Hex, computed once."""
        if name not in self._digests:
            digest = hashlib.sha256()
            for chunk in self.chunks(name):
                digest.update(chunk)
            self._digests[name] = digest.hexdigest()
        return self._digests[name]

    def lines(self, name: str) -> Iterator[Any]:
        """JSON values of a file of lines, none when there is no such file. Raises Rejected for a line that is none."""
        if name not in self.entries:
            return
        rest, number = bytearray(), 0
        for chunk in self.chunks(name):
            *ended, begun = chunk.split(b"\n")
            for line in ended:
                rest += line
                number += 1
                _bound(rest, name, number)
                yield read_json(bytes(rest), f"{name}, line {number}")
                rest.clear()
            rest += begun
            _bound(rest, name, number + 1)
        if rest:
            raise Rejected(f"{name}: the last line has no end")


def _bound(line: bytearray, name: str, number: int) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise Rejected(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes")


def read_json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{where}: not JSON: {error}") from None
