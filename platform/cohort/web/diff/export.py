"""A diff as a file to keep: JSON for machines, Markdown for people. Knows no Django."""

import re
from collections.abc import Iterator
from typing import Any

from cohort.records.diff.compare import Cell, Diff, FieldDiff, SectionDiff
from cohort.records.diff.values import Change, Kind, figure, signed
from cohort.records.diff.words import value_words
from grpo_core.text import printable

SCHEMA = "cohort-record-diff/1"
SIGNS = {Kind.ADDED: "+", Kind.REMOVED: "−", Kind.CHANGED: "≠", Kind.EQUAL: "=", Kind.WITHHELD: "?"}


def to_document(diff: Diff) -> dict[str, Any]:
    """Everything that differs, and the names of what does not; numbers as numbers."""
    return {
        "schema": SCHEMA,
        "before": _which(diff, "before"),
        "after": _which(diff, "after"),
        "identical": diff.identical,
        "head": [_change(change) for change in diff.head],
        "sections": {section.name: _section(section) for section in diff.sections},
        "files": [_values(file, "path", "kind", "before", "after") for file in diff.differing_files],
    }


def _values(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _which(diff: Diff, side: str) -> dict[str, Any]:
    record = getattr(diff, side)
    return {"schema": record.schema, "seal": record.seal, **record.head}


def _section(section: SectionDiff) -> dict[str, Any]:
    return {
        "title": section.title,
        "equal": [field.name for field in section.equal],
        "fields": {field.name: _field(field) for field in section.differing},
        "suites": [
            {
                **_values(suite, "suite", "kind"),
                "cells": {cell.name: _values(cell, "before", "after", "difference") for cell in suite.cells},
                "others": [_change(change) for change in suite.others],
            }
            for suite in section.suites
        ],
    }


def _field(field: FieldDiff) -> dict[str, Any]:
    return {
        **_values(field, "label", "kind", "before", "after"),
        "withheld": field.withheld or None,
        "values": [_change(change) for change in field.values],
        "marks": [_change(change) for change in field.marks],
    }


def _change(change: Change) -> dict[str, Any]:
    names = ["path", "words", "kind", "before", "after", *(["difference"] if change.difference is not None else [])]
    return _values(change, *names)


# ---------------------------------------------------------------------- Markdown


def to_markdown(diff: Diff) -> Iterator[str]:
    """The lines of the differences in words; what people wrote cannot become markup of this file."""
    return (f"{line}\n" for line in _lines(diff))


def _lines(diff: Diff) -> Iterator[str]:
    counts = diff.counts
    yield from (
        f"# Records compared: {markdown_cell(diff.before.head['title'])} → {markdown_cell(diff.after.head['title'])}",
        "",
        f"- before: seal `{diff.before.seal}`, sealed {diff.before.head['sealed_at']}",
        f"- after: seal `{diff.after.seal}`, sealed {diff.after.head['sealed_at']}",
        f"- fields: {counts[Kind.CHANGED]} changed, {counts[Kind.ADDED]} added, {counts[Kind.REMOVED]} removed, "
        f"{counts[Kind.WITHHELD]} withheld on a side, {counts[Kind.EQUAL]} equal",
        "",
    )
    if diff.identical:
        yield from ("The seals are equal: they are the same record.", "")
    if diff.head:
        yield from ("## The records themselves", "", *_table(diff.head), "")
    for section in diff.sections:
        yield from _section_lines(section)
    yield from _file_lines(diff)


def _section_lines(section: SectionDiff) -> list[str]:
    lines = [f"## {section.title}", ""]
    if not section.differing:
        return [*lines, "No difference.", ""]
    for suite in section.suites:
        lines += [f"### Suite {markdown_cell(suite.suite)} ({SIGNS[suite.kind]} {suite.kind})", ""]
        lines += ["| figure | before | after | difference |", "| --- | --- | --- | --- |"]
        lines += [_suite_row(cell) for cell in suite.cells]
        lines += ["", *(_table(suite.others) if suite.others else []), ""]
    for field in section.differing:
        lines += [f"### {SIGNS[field.kind]} {markdown_cell(field.label)} ({field.kind})", ""]
        if field.withheld:
            where = "on both sides" if field.withheld == "both" else field.withheld
            lines += [f"Withheld {where}.", ""]
        if field.words_differ:
            lines += [f"- before: {markdown_cell(field.before)}", f"- after: {markdown_cell(field.after)}", ""]
        if field.values or field.marks:
            lines += [*_table([*field.values, *field.marks]), ""]
    if section.equal:
        lines += [f"Equal: {', '.join(markdown_cell(field.label) for field in section.equal)}.", ""]
    return lines


def _file_lines(diff: Diff) -> list[str]:
    if not diff.differing_files:
        return ["## Files", "", "No difference."]
    lines = ["## Files", "", "| | file | before | after |", "| --- | --- | --- | --- |"]
    for file in diff.differing_files:
        sides = [
            f"{side['sha256'][:12]}…, {side['size']:,} bytes" if side else "–" for side in (file.before, file.after)
        ]
        lines.append(f"| {SIGNS[file.kind]} {file.kind} | {markdown_cell(file.path)} | {sides[0]} | {sides[1]} |")
    return lines


def _table(changes: Any) -> list[str]:
    rows = ["| | where | before | after | difference |", "| --- | --- | --- | --- | --- |"]
    for change in changes:
        delta = signed(change.difference) if change.difference is not None else ""
        before = markdown_cell(value_words(change.before, change.path)) if change.kind != Kind.ADDED else "–"
        after = markdown_cell(value_words(change.after, change.path)) if change.kind != Kind.REMOVED else "–"
        rows.append(
            f"| {SIGNS[change.kind]} {change.kind} | {markdown_cell(change.words or 'value')} "
            f"| {before} | {after} | {delta} |"
        )
    return rows


def cell_texts(cell: Cell) -> tuple[str, str, str]:
    """(before, after, difference); the last is empty where they are equal or it is not known."""
    change = ""
    if not cell.equal and cell.difference is not None:
        change = signed(cell.difference) if cell.unit == "count" else figure(cell.difference, "points")
    return figure(cell.before, cell.unit), figure(cell.after, cell.unit), change


def _suite_row(cell: Cell) -> str:
    before, after, change = cell_texts(cell)
    return f"| {cell.name} | {markdown_cell(before)} | {markdown_cell(after)} | {change} |"


def markdown_cell(text: Any) -> str:
    """On one line, with everything that Markdown or HTML would act on escaped."""
    plain = printable(" ".join(str("–" if text is None else text).split()))
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&])", r"\\\1", plain)
