"""Rows of a file in any container that problems are published in: JSON lines, a JSON list, CSV, Parquet, and the text
ones in gzip. The bytes decide which it is, not the name.

Streamed: a row of text is held by itself, Parquet in batches of rows, so a file larger than memory can be read.
"""

import codecs
import csv
import datetime
import decimal
import gzip
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal, cast

from grpo_core.data.lines import MAX_LINE_BYTES, Line, RowFaults, lines_of, row_decoder, shown
from grpo_core.errors import DataError
from grpo_core.text import first_repeated

Container = Literal["jsonl", "json", "csv", "parquet"]
Rows = Iterator[tuple[Line, dict[str, Any]]]

TITLES: dict[str, str] = {"jsonl": "JSON lines", "json": "JSON list", "csv": "CSV", "parquet": "Parquet"}

_PARQUET, _GZIP, _BOM = b"PAR1", b"\x1f\x8b", b"\xef\xbb\xbf"
_REFUSED: dict[bytes, str] = {
    b"version https://git-lfs.github.com/spec": "is a Git LFS pointer, not the data; run `git lfs pull`, or download "
    "the file itself",
    b"PK\x03\x04": "is a zip archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save the sheet as CSV",
    b"\x28\xb5\x2f\xfd": "is packed with zstd; unpack it",
    b"BZh": "is packed with bzip2; unpack it",
    b"\xfd7zXZ": "is packed with xz; unpack it",
    b"ARROW1": "is an Arrow file; save it as Parquet, as `datasets` does with to_parquet",
    b"\xff\xff\xff\xff": "is an Arrow stream, as `datasets` keeps in its cache; save it with to_parquet",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"<!DOCTYPE": "is a web page, not the data; download the file itself (on GitHub: Raw)",
    b"<html": "is a web page, not the data; download the file itself (on GitHub: Raw)",
}
_HEAD = 512
_BATCH_ROWS = 64
_BUFFER = 1 << 20
_CHUNK = 1 << 16
_DELIMITERS = ",\t;|"
_KEPT = (type(None), str, int, float, dict, list, tuple)
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)
_CUT = "is where the file ends, without the list's ]; it is cut"


def container_of(handle: IO[bytes], *, source: str) -> tuple[Container, IO[bytes]]:
    """The container, and the handle to read it by, at its beginning. `handle` can seek. Raises DataError, with the
    remedy, for what is none."""
    handle.seek(0)
    head = handle.read(_HEAD)
    handle.seek(0)
    if head.startswith(_PARQUET):
        return "parquet", handle
    if head.startswith(_GZIP):
        handle = cast("IO[bytes]", gzip.GzipFile(fileobj=handle))
        with _unpacking(source):
            head = handle.read(_HEAD)
            handle.seek(0)
        if head.startswith((_PARQUET, _GZIP)):
            raise DataError(f"{source}: is packed with gzip twice, or Parquet in gzip; unpack it once")
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(f"{source}: {what}")
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        return "json", handle
    first = text.partition(b"\n")[0].strip()
    if text.startswith(b"{") and first == b"{":
        raise DataError(
            f"{source}: is an object over several lines; expected one object a line, or a list of objects: [{{…}}, …]"
        )
    if b"\r" in first and not text.startswith(b"{"):
        raise DataError(f"{source}: ends its lines with CR alone, as old Macs did; save it with LF, as `CSV UTF-8`")
    return ("csv" if _is_head_line(first) else "jsonl"), handle


def rows_of(handle: IO[bytes], *, source: str, faults: RowFaults) -> Rows:
    """Each row's fields, and the Line that says where a fault is. A row that is none is collected as a fault and passed
    over; what keeps later rows from being read raises DataError naming file and line or row."""
    container, opened = container_of(handle, source=source)
    with _unpacking(source):
        yield from _READ[container](opened, source, faults)


def _is_head_line(line: bytes) -> bool:
    """Whether the first line names the columns of CSV: no JSON, and what separates names, or one of words."""
    if line.startswith(b"{"):
        return False
    text = line.decode("utf-8", errors="replace")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return re.search(f"[{_DELIMITERS}]", text) is not None or re.fullmatch(r"[\w .:\"'/()-]+", text) is not None
    return False


@contextmanager
def _unpacking(source: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{source}: is gzip that is cut or damaged ({error}); fetch it again") from None


def _jsonl_rows(handle: IO[bytes], source: str, faults: RowFaults) -> Rows:
    for number, raw in enumerate(lines_of(handle, source), start=1):
        line, fields = Line(source, number), None
        with faults.collected():
            fields = line.parse(raw)
        if fields is not None:
            yield line, fields


def _json_rows(handle: IO[bytes], source: str, faults: RowFaults) -> Rows:
    """Elements of a list, each decoded when all of it is read."""
    reader, decoder = _TextReader(handle, source), row_decoder()
    first = True
    for number in itertools.count(1):
        line = Line(source, number, unit="row")
        reader.drop(1)  # [ or a comma
        if reader.next_char() == "]" and first:
            break
        yield line, _next_object(line, decoder, reader)
        first = False
        char = reader.next_char()
        if char == "]":
            break
        if char != ",":
            line.fail(f"is followed by {shown(reader.text[:20])}; expected a comma or ]" if char else _CUT)
    reader.drop(1)
    if reader.next_char():
        raise DataError(f"{source}: has more after the end of its list: {shown(reader.text[:20])}")


def _next_object(line: Line, decoder: json.JSONDecoder, reader: "_TextReader") -> dict[str, Any]:
    """The object that the text begins with; reads on until all of it is there."""
    if (char := reader.next_char()) != "{":
        line.fail(f"begins with {shown(reader.text[:20])}; expected an object" if char else _CUT)
    while True:
        try:
            fields, end = decoder.raw_decode(reader.text)
        except json.JSONDecodeError as error:
            if len(reader.text) > MAX_LINE_BYTES:
                line.fail(f"is longer than {MAX_LINE_BYTES:,} bytes, or is not JSON: {error.msg}")
            if not reader.fill(max(_CHUNK, len(reader.text))):
                line.fail(f"is not JSON, or the file is cut: {error.msg}; found {shown(reader.text)}")
        except (ValueError, RecursionError) as error:
            line.fail(f"is not JSON that can be taken: {error}; found {shown(reader.text)}")
        else:
            if end > MAX_LINE_BYTES:
                line.fail(f"is longer than {MAX_LINE_BYTES:,} bytes")
            reader.drop(end)
            return cast("dict[str, Any]", fields)


class _TextReader:
    """UTF-8 text of a file, read on as it is needed."""

    def __init__(self, handle: IO[bytes], source: str) -> None:
        self.text = ""
        self._handle = handle
        self._source = source
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self.next_char()

    def fill(self, count: int) -> bool:
        """Reads so many more bytes; False at the end of the file."""
        raw = self._handle.read(count)
        try:
            self.text += self._decode(raw, final=not raw)
        except UnicodeDecodeError:
            near = shown(self.text[-40:])
            raise DataError(f"{self._source}: is not UTF-8 after {near}; save the file as UTF-8") from None
        return bool(raw)

    def next_char(self) -> str:
        """What the text begins with, white space left out; "" at the end of the file."""
        while not (text := self.text.lstrip()) and self.fill(_CHUNK):
            pass
        self.text = text or self.text.lstrip()
        return self.text[:1]

    def drop(self, count: int) -> None:
        self.text = self.text[count:]


def _csv_rows(handle: IO[bytes], source: str, faults: RowFaults) -> Rows:
    lines = _csv_lines(handle, source, faults)
    first = next(lines)
    delimiter = max(_DELIMITERS, key=lambda mark: len(next(csv.reader([first], delimiter=mark))))
    reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(reader)]
        if (twice := first_repeated(names)) is not None:
            raise DataError(f"{source}, line 1: names the column {shown(twice)} twice")
        start = reader.line_num + 1
        for values in reader:
            line, start = Line(source, start), reader.line_num + 1
            if not values:
                continue
            if len(values) == len(names):
                yield line, dict(zip(names, values, strict=True))
                continue
            with faults.collected():
                line.fail(f"has {len(values)} values; the head line names {len(names)} columns")
    except csv.Error as error:
        raise DataError(f"{source}, line {reader.line_num}: is not CSV: {error}") from None


def _csv_lines(handle: IO[bytes], source: str, faults: RowFaults) -> Iterator[str]:
    for number, raw in enumerate(lines_of(handle, source), start=1):
        line = Line(source, number)
        if len(raw) > MAX_LINE_BYTES:
            line.fail(f"is longer than {MAX_LINE_BYTES:,} bytes")
        raw = raw.removeprefix(_BOM if number == 1 else b"")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            with faults.collected():
                line.fail("is not UTF-8; save the file as UTF-8")
            yield raw.decode("utf-8", errors="replace")


def _parquet_rows(handle: IO[bytes], source: str, faults: RowFaults) -> Rows:
    """No more than a buffer and a batch of rows is held, however long the row groups are."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(handle, pre_buffer=False, buffer_size=_BUFFER)
        if (twice := first_repeated(file.schema_arrow.names)) is not None:
            raise DataError(f"{source}: has the column {shown(twice)} twice")
        batches = file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
        number = 0
        for batch in batches:
            dense = [column for column in batch.columns if not pyarrow.types.is_dictionary(column.type)]
            if (size := sum(column.nbytes for column in dense)) > _BATCH_ROWS * MAX_LINE_BYTES:
                rows = f"rows {number + 1} to {number + len(batch)}"
                raise DataError(f"{source}, {rows}: hold {size:,} bytes; expected at most {MAX_LINE_BYTES:,} a row")
            for at in range(len(batch)):  # a text that is in the file once may be in each of them
                (fields,) = batch.slice(at, 1).to_pylist()
                number += 1
                line, plain = Line(source, number, unit="row"), None
                with faults.collected():
                    if sum(len(value) for value in fields.values() if isinstance(value, str)) > MAX_LINE_BYTES:
                        line.fail(f"is longer than {MAX_LINE_BYTES:,} characters")
                    plain = {name: _plain(line, name, value) for name, value in fields.items()}
                if plain is not None:
                    yield line, plain
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        text = str(error).partition("\n")[0]
        raise DataError(f"{source}: is Parquet that is cut or damaged ({text}); fetch it again") from None


def _plain(line: Line, name: str, value: Any) -> Any:
    """A value of Parquet as JSON has it: times as ISO 8601, decimals as text, NaN as null."""
    if not isinstance(value, _KEPT + _AS_TEXT):
        line.fail(f"{name!r} holds binary data, such as an image; only text is taken, so leave the column out")
    match value:
        case float():
            if math.isinf(value):
                line.fail(f"{name!r} is infinite, which is not a JSON number")
            return None if math.isnan(value) else value
        case dict():
            return {str(key): _plain(line, name, child) for key, child in value.items()}
        case list() | tuple():
            return [_plain(line, name, child) for child in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | datetime.timedelta():
            return str(value)
        case _:
            return value


_READ: dict[Container, Callable[[IO[bytes], str, RowFaults], Rows]] = {
    "jsonl": _jsonl_rows,
    "json": _json_rows,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
}
csv.field_size_limit(MAX_LINE_BYTES)  # of the process; the default of 131,072 is less than a worked solution
