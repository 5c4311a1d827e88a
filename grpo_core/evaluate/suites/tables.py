"""Reads the files that public sets come in: CSV, TSV, JSON or JSON lines. Faults name file and line. Loads no torch."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_core.data.lines import Line
from grpo_core.errors import DataError

_MAX_FIELD = 1024 * 1024


def text_of(name: str, content: bytes) -> str:
    """UTF-8, with or without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line}: is not UTF-8; save the file as UTF-8") from None


def csv_rows(name: str, content: bytes, *, needed: Sequence[str]) -> Iterator[tuple[Line, dict[str, str]]]:
    """Rows of a CSV file with a head line that has the columns `needed`."""
    before = csv.field_size_limit(_MAX_FIELD)
    try:
        rows = csv.DictReader(io.StringIO(text_of(name, content), newline=""), strict=True)
        try:
            columns = rows.fieldnames or []
            if missing := [column for column in needed if column not in columns]:
                raise DataError(
                    f"{name}, line 1: has no column {missing[0]!r}; found {', '.join(columns) or 'nothing'}"
                )
            for row in rows:
                line = Line(name, rows.line_num)
                if None in row or any(value is None for value in row.values()):
                    line.fail(f"does not have the {len(columns)} columns of the head line")
                yield line, row
        except csv.Error as error:
            raise DataError(f"{name}, line {rows.line_num + 1}: is not CSV: {error}") from None
    finally:
        csv.field_size_limit(before)


def tsv_rows(name: str, content: bytes, *, columns: int) -> Iterator[tuple[Line, list[str]]]:
    """Rows of a file without a head line, fields parted by tabs and never quoted."""
    for number, text in enumerate(text_of(name, content).split("\n"), start=1):
        row = text.removesuffix("\r").split("\t")
        line = Line(name, number)
        if row == [""]:
            continue
        if len(row) != columns:
            line.fail(f"has {len(row)} columns; expected {columns}, parted by tabs")
        yield line, row


def json_rows(name: str, content: bytes) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Objects of a JSON list (named by their number in it), or of JSON lines."""
    text = text_of(name, content)
    if not text.lstrip().startswith("["):
        for number, raw in enumerate(text.encode().split(b"\n"), start=1):
            line = Line(name, number)
            if (fields := line.parse(raw, expected="{…}", noun="item")) is not None:
                yield line, fields
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: is not JSON: {error}") from None
    for number, fields in enumerate(value, start=1):
        line = Line(f"{name}, entry {number}", 1)
        if not isinstance(fields, dict):
            line.fail("is no object")
        yield line, fields
