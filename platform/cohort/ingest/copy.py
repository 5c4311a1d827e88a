"""Rows into tables by COPY, straight from checked records: no model objects in between.

A table's limits are read from its model, so that they are defined once. COPY has no ON CONFLICT: callers hold the
attempt's lock and have skipped what is held already; the unique constraints refuse the rest.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import psycopg
from django.db import connection, models

from cohort.base.storable import Refused


class BadRecord(Refused, code="bad_record"):
    """A batch that cannot be stored: a line of it is no record, or one whose values no column can hold, or that
    contradicts what is stored. The message names the record."""

    @classmethod
    def of(cls, seq: int, fault: str, code: str) -> Self:
        """Of the record with this number; `fault` is what is wrong with it, with the field's path before it."""
        return cls(f"record {seq} is not valid: {fault}", code=code)


class Table:
    """Some columns of a model's table, in the order in which rows give them."""

    def __init__(self, model: type[models.Model], *columns: str) -> None:
        fields = [field for name in columns if isinstance(field := model._meta.get_field(name), models.Field)]
        assert len(fields) == len(columns), "every column is a column of the table"
        self._copy = f"COPY {model._meta.db_table} ({', '.join(str(field.column) for field in fields)}) FROM STDIN"
        self._texts = [
            (at, field.name, field.max_length)
            for at, field in enumerate(fields)
            if isinstance(field, models.CharField) and field.max_length is not None
        ]
        self._numbers = [
            (at, field.name, *connection.ops.integer_field_range(field.get_internal_type()))
            for at, field in enumerate(fields)
            if isinstance(field, models.IntegerField)
        ]

    def fit(self, seq: int, row: Sequence[Any]) -> None:
        """Raise BadRecord for a text longer, or a number larger, than its column."""
        for at, name, longest in self._texts:
            if len(row[at]) > longest:
                raise BadRecord.of(seq, f"{name}: has {len(row[at])} characters, at most {longest}", "text_too_long")
        for at, name, least, most in self._numbers:
            if row[at] is not None and not least <= row[at] <= most:
                raise BadRecord.of(seq, f"{name}: {row[at]} is not from {least} to {most}", "number_out_of_range")

    def write(self, cursor: "psycopg.Cursor[Any]", rows: Iterable[Sequence[Any]]) -> None:
        with cursor.copy(self._copy) as copy:
            for row in rows:
                copy.write_row(row)


def server_cursor() -> "psycopg.Cursor[Any]":
    """A cursor of Django's own connection, inside its transaction, whose statements are prepared by the server: the
    same few statements come with every batch. Call it under `connection.wrap_database_errors`."""
    connection.ensure_connection()
    connection.connection.prepare_threshold = 5  # Django forbids it; its own cursors never prepare, whatever is set
    return psycopg.Cursor(connection.connection)
