"""Records side by side as a file to keep: JSON for machines, Markdown for people. Knows no Django."""

from collections.abc import Iterator, Sequence
from typing import Any

from cohort.records.diff.side_by_side import Group, Row, SideBySide
from cohort.web.diff.export import markdown_cell

SCHEMA = "cohort-records-compared/1"


def table_document(table: SideBySide) -> dict[str, Any]:
    """Every row of the table; `cells` in the order of `records`, null where a record has none."""
    return {
        "schema": SCHEMA,
        "records": [{"schema": record.schema, "seal": record.seal, **record.head} for record in table.records],
        "chosen": _rows(table.chosen),
        "results": [_group(group) for group in table.results],
        "rest": [_group(group) for group in table.rest],
        "digests": _rows(table.digests),
        "equal_fields": table.equal,
    }


def _group(group: Group) -> dict[str, Any]:
    return {"title": group.title, "rows": _rows(group.rows), "equal": list(group.equal)}


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"label": row.label, "path": row.path, "cells": list(row.cells), "differences": list(row.differences)}
        for row in rows
    ]


def table_markdown(table: SideBySide) -> Iterator[str]:
    """Lines; what people wrote cannot become markup of this file."""
    titles = [f"{markdown_cell(record.head['title'])} ({record.seal[:8]})" for record in table.records]
    parts = [
        ("What people chose", table.chosen),
        *((group.title, group.rows) for group in (*table.results, *table.rest)),
        ("Digests", table.digests),
    ]
    yield f"# Records compared: {len(titles)}\n\n"
    for title, rows in parts:
        yield f"## {markdown_cell(title)}\n\n"
        if not rows:
            yield "No difference.\n\n"
            continue
        yield f"| | {' | '.join(titles)} |\n"
        yield f"| --- |{' --- |' * len(titles)}\n"
        for row in rows:
            cells = " | ".join(f"{markdown_cell(cell)}{f' ({by})' if by else ''}" for cell, _, by in row.marked)
            yield f"| {markdown_cell(row.label)} | {cells} |\n"
        yield "\n"
    yield f"{table.equal} fields are equal in all.\n"
