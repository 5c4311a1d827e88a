"""A diff arranged for its page: what of it is unfolded, which words are marked, how much of a long list is shown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from cohort.records.diff.compare import Diff, FieldDiff, SectionDiff, SuiteDiff
from cohort.records.diff.side_by_side import Row, SideBySide, without_digests
from cohort.records.diff.values import Change, Kind, signed
from cohort.records.diff.words import is_digest, value_words
from cohort.records.summary import clamp
from cohort.web.catalog.reward_versions import equal_pairs
from cohort.web.diff.export import SIGNS, cell_texts

MOST_WORDS = 3_000
"""Of both together, with the spaces between; beyond it the texts are shown side by side unmarked."""
MOST_PAIRS = 20_000
"""Pairs of a word with the same word in the other text, see `equal_pairs`. Prose of that length has fewer."""
_PIECES = re.compile(r"\s+|[\w.,%−+-]+|.", re.DOTALL)


@dataclass(frozen=True)
class Piece:
    text: str
    differs: bool


def marked(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces that are in both, or differ. Joined again they are the texts."""
    a, b = _PIECES.findall(before), _PIECES.findall(after)
    words = (word for word in a if not word.isspace())
    if len(a) + len(b) > MOST_WORDS or equal_pairs(words, b) > MOST_PAIRS:
        return [Piece(before, False)], [Piece(after, False)]
    left, right = [], []
    for tag, i1, i2, j1, j2 in SequenceMatcher(str.isspace, a, b, autojunk=False).get_opcodes():
        if i2 > i1:
            left.append(Piece("".join(a[i1:i2]), tag != "equal"))
        if j2 > j1:
            right.append(Piece("".join(b[j1:j2]), tag != "equal"))
    return left, right


ROWS = 100
"""Differing places of one value on the page, and differing digests; the files hold all."""
CELL = 320
"""Small letters of a cell of the table."""

_TONES = {Kind.ADDED: "is-right", Kind.REMOVED: "is-wrong", Kind.CHANGED: "is-suspect", Kind.WITHHELD: "is-plain"}


_WORDS = {Kind.ADDED: "only in the second", Kind.REMOVED: "only in the first"}


def _mark(kind: Kind) -> dict[str, str]:
    """Sign, word and colour of what became of something."""
    words = _WORDS.get(kind, kind.value)
    return {"kind": kind.value, "sign": SIGNS[kind], "tone": _TONES.get(kind, ""), "words": words}


def shown(diff: Diff) -> dict[str, Any]:
    """For the template. `counts`: the fields that differ, by what became of them; only what there is."""
    counts = diff.counts
    return {
        "diff": diff,
        "head": _rows(diff.head)["rows"],
        "sections": [_section(section) for section in diff.sections],
        "files": [{"file": file, "mark": _mark(file.kind)} for file in diff.differing_files],
        "digests_alone": sum(_digests_alone(field) for section in diff.sections for field in section.differing),
        "counts": [(_mark(kind), count) for kind, count in counts.items() if count and kind != Kind.EQUAL],
        "equal": counts[Kind.EQUAL],
    }


def table_shown(table: SideBySide) -> dict[str, Any]:
    """For the template: titles of the columns, and of long parts how many rows the page leaves out. A text of more than
    `CELL` is cut and says so; the files and the records hold all of it."""
    digests = table.digests
    return {
        "heads": [record.head for record in table.records],
        "chosen": _cut(table.chosen),
        "results": [(group.title, _cut(group.rows)) for group in table.results],
        "rest": [(group.title, _cut(group.rows), group.equal) for group in table.rest],
        "digests": [replace(row, cells=tuple(cell and _digest(cell) for cell in row.cells)) for row in digests[:ROWS]],
        "more_digests": max(0, len(digests) - ROWS),
        "equal": table.equal,
    }


def _cut(rows: Sequence[Row]) -> list[Row]:
    return [replace(row, cells=tuple(cell and clamp(cell, CELL) for cell in row.cells)) for row in rows]


def _digest(cell: str) -> str:
    return f"{cell[:16]}…" if is_digest(cell) else clamp(cell, CELL)


def _section(section: SectionDiff) -> dict[str, Any]:
    fields = [_field(field) for field in section.differing if not _digests_alone(field)]
    suites = [_suite(suite) for suite in section.suites if suite.kind != Kind.EQUAL]
    equal = [field.label for field in section.equal]
    return {"section": section, "equal": equal, "differs": bool(fields), "fields": fields, "suites": suites}


def _digests_alone(field: FieldDiff) -> bool:
    """Whether all that differs are digests, which are shown last."""
    if field.kind != Kind.CHANGED or field.marks or field.before is None or field.after is None:
        return False
    return without_digests(field.before) == without_digests(field.after) and all(map(_of_digest, field.values))


def _of_digest(change: Change) -> bool:
    return is_digest(change.after if change.before is None else change.before)


def _field(field: FieldDiff) -> dict[str, Any]:
    before = [Piece(field.before, False)] if field.before is not None else None
    after = [Piece(field.after, False)] if field.after is not None else None
    if field.before is not None and field.after is not None and field.words_differ:
        before, after = marked(field.before, field.after)
    # A single value without a path adds nothing to the words.
    include_pathless = not (len(field.values) == 1 and not field.values[0].path and field.values[0].difference is None)
    return {
        "field": field,
        "mark": _mark(field.kind),
        "before": before,
        "after": after,
        "same_words": field.before is not None and not field.words_differ,
        "withheld_before": field.withheld in ("before", "both"),
        "withheld_after": field.withheld in ("after", "both"),
        **_rows(
            [*(change for change in field.values if not _of_digest(change)), *field.marks],
            include_pathless=include_pathless,
        ),
    }


def _rows(changes: Sequence[Change], *, include_pathless: bool = True) -> dict[str, Any]:
    """`rows` of the page, and how many `more` it leaves out."""
    kept = [change for change in changes if include_pathless or change.path]
    rows = [
        {
            "where": change.words or "value",
            "path": change.path,
            "mark": _mark(change.kind),
            "before": None if change.kind == Kind.ADDED else value_words(change.before, change.path),
            "after": None if change.kind == Kind.REMOVED else value_words(change.after, change.path),
            "difference": signed(change.difference),
        }
        for change in kept[:ROWS]
    ]
    return {"rows": rows, "more": max(0, len(kept) - ROWS)}


def _suite(suite: SuiteDiff) -> dict[str, Any]:
    names = ("before", "after", "difference")
    cells = [
        {"name": cell.name, "equal": cell.equal, **dict(zip(names, cell_texts(cell), strict=True))}
        for cell in suite.cells
    ]
    return {"suite": suite, "mark": _mark(suite.kind), "cells": cells, **_rows(suite.others)}
