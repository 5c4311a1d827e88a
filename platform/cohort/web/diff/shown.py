"""A diff arranged for its page: what of it is unfolded, which words are marked, how much of a long list is shown."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from cohort.records.diff.compare import Cell, Diff, FieldDiff, FileDiff, SectionDiff, SuiteDiff
from cohort.records.diff.values import Change, Kind, figure, one_line, signed
from cohort.web.diff.export import SIGNS

MOST_WORDS = 3_000
"""Of both together, with the spaces between; beyond it the texts are shown side by side unmarked."""
MOST_PAIRS = 20_000
"""Of a word of the one with the same word of the other. The comparison looks at them again for each run of words that
is in both, so that texts of a few words repeated over and over would take minutes. Prose of that length has fewer."""
_PIECES = re.compile(r"\s+|[\w.,%−+-]+|.", re.DOTALL)


@dataclass(frozen=True)
class Piece:
    text: str
    differs: bool


def marked(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces that are in both, or differ. Joined again they are the texts."""
    a, b = _PIECES.findall(before), _PIECES.findall(after)
    if len(a) + len(b) > MOST_WORDS or _pairs(a, b) > MOST_PAIRS:
        return [Piece(before, False)], [Piece(after, False)]
    left, right = [], []
    for tag, i1, i2, j1, j2 in SequenceMatcher(str.isspace, a, b, autojunk=False).get_opcodes():
        if i2 > i1:
            left.append(Piece("".join(a[i1:i2]), tag != "equal"))
        if j2 > j1:
            right.append(Piece("".join(b[j1:j2]), tag != "equal"))
    return left, right


def _pairs(a: list[str], b: list[str]) -> int:
    first, second = Counter(a), Counter(b)
    return sum(count * second[word] for word, count in first.items() if not word.isspace())


ROWS = 100
"""Differing places of one value on the page; the files hold all."""

_TONES = {Kind.ADDED: "is-right", Kind.REMOVED: "is-wrong", Kind.CHANGED: "is-suspect", Kind.WITHHELD: "is-plain"}


@dataclass(frozen=True)
class Mark:
    """Sign, word and colour of what became of something."""

    kind: Kind

    @property
    def sign(self) -> str:
        return SIGNS[self.kind]

    @property
    def tone(self) -> str:
        return _TONES.get(self.kind, "")

    @property
    def words(self) -> str:
        return {Kind.ADDED: "only in the second", Kind.REMOVED: "only in the first"}.get(self.kind, self.kind.value)


@dataclass(frozen=True)
class ChangeRow:
    path: str
    mark: Mark
    before: str | None
    after: str | None
    difference: str


@dataclass(frozen=True)
class FieldRow:
    field: FieldDiff
    mark: Mark
    before: list[Piece] | None
    after: list[Piece] | None
    rows: list[ChangeRow]
    more: int
    """Differing places that the page leaves out."""

    @property
    def same_words(self) -> bool:
        return self.field.before is not None and not self.field.words_differ

    @property
    def withheld_before(self) -> bool:
        return self.field.withheld in ("before", "both")

    @property
    def withheld_after(self) -> bool:
        return self.field.withheld in ("after", "both")


@dataclass(frozen=True)
class CellRow:
    name: str
    before: str
    after: str
    difference: str
    equal: bool


@dataclass(frozen=True)
class SuiteRow:
    suite: SuiteDiff
    mark: Mark
    cells: list[CellRow]
    rows: list[ChangeRow]
    more: int


@dataclass(frozen=True)
class SectionRow:
    section: SectionDiff
    fields: list[FieldRow]
    suites: list[SuiteRow]

    @property
    def differs(self) -> bool:
        return bool(self.fields)


@dataclass(frozen=True)
class FileRow:
    file: FileDiff
    mark: Mark


@dataclass(frozen=True)
class Shown:
    diff: Diff
    head: list[ChangeRow]
    sections: list[SectionRow]
    files: list[FileRow]
    counts: list[tuple[Mark, int]]
    """Fields that differ, by what became of them; only what there is."""
    equal: int


def shown(diff: Diff) -> Shown:
    counts = diff.counts
    return Shown(
        diff,
        head=_rows(diff.head)[0],
        sections=[_section(section) for section in diff.sections],
        files=[FileRow(file, Mark(file.kind)) for file in diff.differing_files],
        counts=[(Mark(kind), count) for kind, count in counts.items() if count and kind != Kind.EQUAL],
        equal=counts[Kind.EQUAL],
    )


def _section(section: SectionDiff) -> SectionRow:
    suites = [suite for suite in section.suites if suite.kind != Kind.EQUAL]
    return SectionRow(section, [_field(field) for field in section.differing], [_suite(suite) for suite in suites])


def _field(field: FieldDiff) -> FieldRow:
    before = [Piece(field.before, False)] if field.before is not None else None
    after = [Piece(field.after, False)] if field.after is not None else None
    if field.before is not None and field.after is not None and field.words_differ:
        before, after = marked(field.before, field.after)
    rows, more = _rows([*field.values, *field.marks], worth=_worth(field))
    return FieldRow(field, Mark(field.kind), before, after, rows, more)


def _worth(field: FieldDiff) -> bool:
    """Whether the differing values add to the words: a single value without a path does not."""
    return not (len(field.values) == 1 and not field.values[0].path and field.values[0].difference is None)


def _rows(changes: Sequence[Change], *, worth: bool = True) -> tuple[list[ChangeRow], int]:
    kept = [change for change in changes if worth or change.path]
    rows = [
        ChangeRow(
            change.path or "value",
            Mark(change.kind),
            None if change.kind == Kind.ADDED else one_line(change.before),
            None if change.kind == Kind.REMOVED else one_line(change.after),
            signed(change.difference),
        )
        for change in kept[:ROWS]
    ]
    return rows, max(0, len(kept) - ROWS)


def _suite(suite: SuiteDiff) -> SuiteRow:
    rows, more = _rows(suite.others)
    return SuiteRow(suite, Mark(suite.kind), [_cell(cell) for cell in suite.cells], rows, more)


def _cell(cell: Cell) -> CellRow:
    change = ""
    if not cell.equal and cell.difference is not None:
        change = signed(cell.difference) if cell.unit == "count" else figure(cell.difference, "points")
    return CellRow(cell.name, figure(cell.before, cell.unit), figure(cell.after, cell.unit), change, cell.equal)
