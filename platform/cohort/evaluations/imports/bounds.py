"""Bytes from anywhere, made JSON within bounds (how much is read, how much is unpacked, how deep it may nest), and
the results of another tool that they hold."""

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, cast

import zstandard

from cohort.base.storable import Refused
from grpo_core.data.lines import object_once
from grpo_core.text import UNSTORABLE

MAX_UPLOAD_BYTES = 64 * 1024 * 1024
"""All files of one import together."""
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""One JSON document, unpacked."""
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_ENTRIES = 200_000
"""Files in a zip."""

_STORED, _DEFLATED, _ZSTD = 0, 8, 93
_ENCRYPTED = 0x1
_LOCAL_HEADER = 30
_DAMAGED = (
    *(zipfile.BadZipFile, zstandard.ZstdError, zlib.error, struct.error),
    *(EOFError, OSError, ValueError, OverflowError, RuntimeError),  # RuntimeError: unknown flags too
)


class BadImport(Refused, code="bad_import"):
    """A file that cannot be imported. The message says what is wrong with it, for a person."""


def document(content: bytes, source: str) -> dict[str, Any]:
    """The JSON object that `content` holds. NaN and Infinity are read, since tools write them; callers check each
    number. Raises BadImport."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise BadImport(
            f"{source} holds more than {MAX_DOCUMENT_BYTES:,} bytes of JSON. Export it without its samples.",
            code="too_large",
        )
    value = parsed(content, source)
    if not isinstance(value, dict):
        raise BadImport(f"{source} is JSON, but not an object", code="not_an_object")
    return value


def parsed(content: bytes, source: str) -> Any:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadImport(f"{source} is not UTF-8 (byte {error.start + 1})", code="not_utf8") from None
    try:
        return json.loads(text, object_pairs_hook=object_once)
    except json.JSONDecodeError as error:
        raise BadImport(
            f"{source} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}", code="not_json"
        ) from None
    except RecursionError:
        raise BadImport(f"{source} is nested too deep", code="too_deep") from None
    except ValueError as error:
        raise BadImport(f"{source} is not JSON that can be taken: {error}", code="not_json") from None


class Archive:
    """A zip in memory, of which single members are read within bounds. Inspect packs its logs with zstandard, which
    the standard library of Python 3.11 does not unpack."""

    def __init__(self, content: bytes, source: str) -> None:
        """Raises BadImport."""
        self.source = source
        self._content = content
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                entries = archive.infolist()
        # NotImplementedError is how zipfile refuses a zip of a version that it does not know.
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error) as error:
            raise BadImport(f"{source} is not a zip that can be read: {error}", code="not_a_zip") from None
        if len(entries) > MAX_ENTRIES:
            raise BadImport(
                f"{source} holds {len(entries):,} files; at most {MAX_ENTRIES:,} are taken", code="too_many_files"
            )
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in entries:
            if entry.filename in self._entries:
                raise BadImport(f"{source} holds {entry.filename[:60]!r} twice", code="member_twice")
            self._entries[entry.filename] = entry

    def __contains__(self, member: str) -> bool:
        return member in self._entries

    def names(self) -> list[str]:
        """Of its members, in the order of the zip."""
        return list(self._entries)

    def read(self, member: str) -> bytes:
        """Raises BadImport: no such member, too large when unpacked, damaged, or packed in a way that is not known."""
        entry = self._entries.get(member)
        if entry is None:
            raise BadImport(f"{self.source} holds no {member}", code="no_such_member")
        where = f"{member} in {self.source}"
        if entry.flag_bits & _ENCRYPTED:
            raise BadImport(f"{where} is encrypted", code="encrypted")
        if entry.compress_type not in (_STORED, _DEFLATED, _ZSTD):
            raise BadImport(
                f"{where} is packed by method {entry.compress_type}, which is not known here", code="unknown_packing"
            )
        try:
            with self._opened(entry) as stream:
                content = stream.read(MAX_DOCUMENT_BYTES + 1)
        except _DAMAGED as error:
            raise BadImport(f"{where} is damaged: {error}", code="damaged") from None
        if len(content) > MAX_DOCUMENT_BYTES:
            raise BadImport(
                f"{where} is more than {MAX_DOCUMENT_BYTES:,} bytes when unpacked", code="too_large_unpacked"
            )
        return content

    def _opened(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        if entry.compress_type != _ZSTD:
            with zipfile.ZipFile(io.BytesIO(self._content)) as archive:
                return archive.open(entry)
        head = self._content[entry.header_offset : entry.header_offset + _LOCAL_HEADER]
        lengths = struct.unpack("<HH", head[26:30])  # of the name and the extra field that follow the header
        start = entry.header_offset + _LOCAL_HEADER + sum(lengths)
        packed = io.BytesIO(self._content[start : start + entry.compress_size])
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_DOCUMENT_BYTES).stream_reader(packed)
        return cast("IO[bytes]", reader)


MOST_CHARS = 500
"""Of one stated fact; a longer one is cut and ends with an ellipsis."""
MOST_NAME = 200


@dataclass(frozen=True)
class ToolResult:
    tool: str
    task: str
    metric: str
    value: float
    stderr: float | None
    n: int | None
    higher_is: str
    """better, worse, or empty where the file does not state it."""
    facts: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] | None = None
    """{n, mean, sha256} over the items that came along."""


def number(value: Any, where: str) -> float:
    """A finite number; true and false are not numbers. Raises BadImport."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadImport(f"{where} is {shown(value)}, not a number", code="not_a_number")
    if isinstance(value, int) and abs(value) > 2**53:
        raise BadImport(f"{where} is too large a number", code="number_too_large")
    if not math.isfinite(value):
        raise BadImport(f"{where} is {value}, which is not a finite number", code="not_finite")
    return float(value)


def finite(value: Any) -> float | None:
    """A finite number whose sums stay finite; None for anything else."""
    if not isinstance(value, int | float) or not -(2**53) <= value <= 2**53:
        return None
    return float(value)


def count(value: Any) -> int | None:
    """A number of items that fits its column; None for anything else."""
    return value if type(value) is int and 0 <= value < 2**31 else None


def name(value: Any, where: str) -> str:
    """Raises BadImport."""
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_NAME or UNSTORABLE.search(value):
        raise BadImport(f"{where} is {shown(value)}; expected a name of 1 to {MOST_NAME} characters", code="bad_name")
    return value


def facts_of(entries: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Of the named entries those that are a text, a number, or true or false; as the file has them."""
    kept: dict[str, Any] = {}
    for key in names:
        value = entries.get(key)
        if isinstance(value, str) and value:
            text = UNSTORABLE.sub("\ufffd", value)
            kept[key] = text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"
        elif isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < 2**53):
            kept[key] = value
    return kept


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Raises BadImport for anything but an object."""
    if not isinstance(value, dict):
        raise BadImport(f"{where} is {shown(value)}, not an object", code="not_an_object")
    return value


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
