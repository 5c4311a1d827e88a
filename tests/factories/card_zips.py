"""Zips of a card, laid out as a card is, with one file changed or with heads that claim something else."""

import io
import zlib

from cohort.evidence import zip_layout

Part = tuple[bytes, bytes, dict[str, int]]
"""Head, packed content, and what both heads say of it."""


class Packer:
    """Zips of a card with one file changed, quickly: what is unchanged is compressed once."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._parts = {name: self.part(name, content) for name, content in files.items()}

    @staticmethod
    def part(name: str, content: bytes, body: bytes | None = None, **claimed: int) -> Part:
        """The content deflated, or `body` in its place; heads that say what is `claimed`."""
        body = deflate(content) if body is None else body
        facts = {"crc": zlib.crc32(content), "packed": len(body), "size": len(content)} | claimed
        return zip_layout.local_head(name, **facts), body, facts

    def zip(self, name: str, content: bytes, body: bytes | None = None, **claimed: int) -> io.BytesIO:
        out, directory = io.BytesIO(), b""
        parts = {**self._parts, name: self.part(name, content, body, **claimed)}
        for one, (head, packed_content, facts) in parts.items():
            directory += zip_layout.central_entry(one, **facts, offset=out.tell())
            out.write(head + packed_content)
        end = zip_layout.end_record(count=len(parts), length=len(directory), offset=out.tell())
        out.write(directory + end)
        return out


def deflate(content: bytes) -> bytes:
    return zlib.compress(content, 1, wbits=-zlib.MAX_WBITS)
