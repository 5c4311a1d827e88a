"""A diff as a file to keep: JSON for machines, Markdown for people. Knows no Django."""

import json
import re
from typing import Any

from cohort.records.answers import printable
from cohort.records.diff.compare import Diff, FieldDiff, SectionDiff
from cohort.records.diff.suites import Cell
from cohort.records.diff.values import Change, Kind
from cohort.records.diff.words import figure, one_line, signed

SCHEMA = "cohort-record-diff/1"
SIGNS = {Kind.ADDED: "+", Kind.REMOVED: "−", Kind.CHANGED: "≠", Kind.EQUAL: "=", Kind.WITHHELD: "?"}


def to_json(found: Diff) -> str:
    """Everything that differs, and the names of what does not; numbers as numbers."""
    document = {
        "schema": SCHEMA,
        "before": _which(found, "before"),
        "after": _which(found, "after"),
        "identical": found.identical,
        "head": [_change(one) for one in found.head],
        "sections": {section.name: _section(section) for section in found.sections},
        "files": [
            {"path": one.path, "kind": one.kind, "before": one.before, "after": one.after}
            for one in found.differing_files
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _which(found: Diff, side: str) -> dict[str, Any]:
    one = getattr(found, side)
    return {"schema": one.schema, "seal": one.seal, **one.head}


def _section(section: SectionDiff) -> dict[str, Any]:
    return {
        "title": section.title,
        "equal": [one.name for one in section.equal],
        "fields": {one.name: _field(one) for one in section.differing},
        "suites": [
            {
                "suite": suite.suite,
                "kind": suite.kind,
                "cells": {
                    cell.name: {"before": cell.before, "after": cell.after, "difference": cell.difference}
                    for cell in suite.cells
                },
                "others": [_change(one) for one in suite.others],
            }
            for suite in section.suites
        ],
    }


def _field(one: FieldDiff) -> dict[str, Any]:
    return {
        "label": one.label,
        "kind": one.kind,
        "before": one.before,
        "after": one.after,
        "withheld": one.withheld or None,
        "values": [_change(change) for change in one.values],
        "marks": [_change(change) for change in one.marks],
    }


def _change(one: Change) -> dict[str, Any]:
    found = {"path": one.path, "kind": one.kind, "before": one.before, "after": one.after}
    return {**found, "difference": one.difference} if one.difference is not None else found


# ---------------------------------------------------------------------- Markdown


def to_markdown(found: Diff) -> str:
    """The differences in words; what people wrote cannot become markup of this file."""
    counts = found.counts
    lines = [
        f"# Records compared: {_cell(found.before.head['title'])} → {_cell(found.after.head['title'])}",
        "",
        f"- before: seal `{found.before.seal}`, sealed {found.before.head['sealed_at']}",
        f"- after: seal `{found.after.seal}`, sealed {found.after.head['sealed_at']}",
        f"- fields: {counts[Kind.CHANGED]} changed, {counts[Kind.ADDED]} added, {counts[Kind.REMOVED]} removed, "
        f"{counts[Kind.WITHHELD]} withheld on a side, {counts[Kind.EQUAL]} equal",
        "",
    ]
    if found.identical:
        lines += ["The seals are equal: they are the same record.", ""]
    if found.head:
        lines += ["## The records themselves", "", *_table(found.head), ""]
    for section in found.sections:
        lines += _section_lines(section)
    lines += _file_lines(found)
    return "\n".join(lines).rstrip() + "\n"


def _section_lines(section: SectionDiff) -> list[str]:
    lines = [f"## {section.title}", ""]
    if not section.differing:
        return [*lines, "No difference.", ""]
    for suite in section.suites:
        lines += [f"### Suite {_cell(suite.suite)} ({SIGNS[suite.kind]} {suite.kind})", ""]
        lines += ["| figure | before | after | difference |", "| --- | --- | --- | --- |"]
        lines += [_suite_row(cell) for cell in suite.cells]
        lines += ["", *(_table(suite.others) if suite.others else []), ""]
    for one in section.differing:
        lines += [f"### {SIGNS[one.kind]} {_cell(one.label)} ({one.kind})", ""]
        if one.withheld:
            where = "on both sides" if one.withheld == "both" else one.withheld
            lines += [f"Withheld {where}.", ""]
        if one.words_differ:
            lines += [f"- before: {_cell(one.before)}", f"- after: {_cell(one.after)}", ""]
        if one.values or one.marks:
            lines += [*_table([*one.values, *one.marks]), ""]
    if section.equal:
        lines += [f"Equal: {', '.join(_cell(one.label) for one in section.equal)}.", ""]
    return lines


def _file_lines(found: Diff) -> list[str]:
    if not found.differing_files:
        return ["## Files", "", "No difference."]
    lines = ["## Files", "", "| | file | before | after |", "| --- | --- | --- | --- |"]
    for one in found.differing_files:
        sides = [f"{side['sha256'][:12]}…, {side['size']:,} bytes" if side else "–" for side in (one.before, one.after)]
        lines.append(f"| {SIGNS[one.kind]} {one.kind} | {_cell(one.path)} | {sides[0]} | {sides[1]} |")
    return lines


def _table(found: Any) -> list[str]:
    rows = ["| | where | before | after | difference |", "| --- | --- | --- | --- | --- |"]
    for one in found:
        change = signed(one.difference) if one.difference is not None else ""
        before = _cell(one_line(one.before)) if one.kind != Kind.ADDED else "–"
        after = _cell(one_line(one.after)) if one.kind != Kind.REMOVED else "–"
        rows.append(f"| {SIGNS[one.kind]} {one.kind} | {_cell(one.path or 'value')} | {before} | {after} | {change} |")
    return rows


def _suite_row(cell: Cell) -> str:
    before, after, change = figure(cell.before, cell.unit), figure(cell.after, cell.unit), ""
    if not cell.equal and cell.difference is not None:
        change = signed(cell.difference) if cell.unit == "count" else figure(cell.difference, "points")
    return f"| {cell.name} | {_cell(before)} | {_cell(after)} | {change} |"


def _cell(text: Any) -> str:
    """On one line, with everything that Markdown or HTML would act on escaped."""
    plain = printable(" ".join(str("–" if text is None else text).split()))
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&])", r"\\\1", plain)
