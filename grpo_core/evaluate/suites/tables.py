"""Rows of the files that public sets come in: any container of grpo_core.data.containers, and tables without a head
line. Faults name file and line. Loads no torch."""

import io
from collections.abc import Iterator, Sequence

from grpo_core.data.containers import Rows, rows_of
from grpo_core.data.lines import Line, RowFaults, names_shown
from grpo_core.errors import DataError


def text_of(name: str, content: bytes) -> str:
    """UTF-8, with or without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line}: is not UTF-8; save the file as UTF-8") from None


def table_rows(name: str, content: bytes, *, needed: Sequence[str] = ()) -> Rows:
    """Rows that have the columns `needed`."""
    faults = RowFaults()
    for line, fields in rows_of(io.BytesIO(content), source=name, faults=faults):
        if missing := [column for column in needed if column not in fields]:
            line.fail(f"has no column {missing[0]!r}; found {names_shown(fields)}")
        yield line, fields
    faults.raise_any()


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
