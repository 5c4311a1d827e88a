"""Records next to each other, a column a record: what people chose first, then results, then all else that differs, and
digests last. Knows no Django."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.evidence.canonical import dig
from cohort.records.diff.compare import Read
from cohort.records.diff.values import MISSING, Place, difference, places, signed
from cohort.records.diff.words import counts, is_digest, setting_words, value_words
from cohort.records.document_view import compared
from cohort.records.fields import FIELDS, OPTIONAL, TITLES, field_facts
from cohort.records.schema_types import AUDIENCE_WORDS, Comparison

CHOSEN = (
    "subject.base_model",
    "data.prompts",
    "data.selection",
    "data.heldout",
    "reward.source",
    "reward.verifier",
    "method.preset",
    "method.loss",
    "method.normalization",
)
"""Fields that state what people choose before the settings of the config; the rest of `method` states settings."""
RESULTS = ("subject.outcome", "reward.course", "behaviour.safety_regressions")
"""Fields before the table of suites."""
_PERFORMANCE = "behaviour.performance"
_DIGEST = re.compile(r"\b[0-9a-f]{12,128}(?![0-9A-Za-z])…?")


@dataclass(frozen=True)
class Row:
    label: str
    path: str
    """`section.field` and, of a part of its value, the path in it."""
    cells: tuple[str | None, ...]
    """One for each record, in their order; None where it has none."""
    differences: tuple[str, ...] = ()
    """Of each from the first, where both are numbers; else empty."""

    @property
    def marked(self) -> list[tuple[str | None, bool, str]]:
        """Each cell, whether it is another than the first, and the difference."""
        differences = self.differences or ("",) * len(self.cells)
        return [(cell, cell != self.cells[0], by) for cell, by in zip(self.cells, differences, strict=True)]

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1


def differences(values: Sequence[Any], unit: str = "") -> tuple[str, ...]:
    """Of each value from the first; empty where one of the two is no number, or they are equal."""
    by = (difference(values[0], value) for value in values)
    return tuple(f"{signed(delta)}{unit}" if delta else "" for delta in by)


@dataclass(frozen=True)
class Group:
    title: str
    rows: tuple[Row, ...]
    equal: tuple[str, ...] = ()
    """Labels of its fields that are the same in all, but for digests."""


@dataclass(frozen=True)
class SideBySide:
    records: tuple[Read, ...]
    chosen: tuple[Row, ...]
    """Those that differ: fields, then settings."""
    results: tuple[Group, ...]
    """Outcome, then a group a suite; equal rows too."""
    rest: tuple[Group, ...]
    """All other fields, by section: those that differ as rows."""
    digests: tuple[Row, ...]
    """Digests that differ, of the records, in their fields, and of the sealed files."""
    equal: int
    """Number of fields that are the same in all, but for digests."""


def side_by_side(records: Sequence[Read], settings: Sequence[Row] = ()) -> SideBySide:
    """`settings`: rows of the configs that were sealed, where the reader has them."""
    sections = {
        section: [name for name in fields if section not in OPTIONAL or _any_has(records, section, name)]
        for section, fields in FIELDS.items()
    }
    paths = [f"{section}.{name}" for section, names in sections.items() for name in names]
    rows = {path: _field(path, records) for path in paths}
    differing = {path: [row for row in of_field if row.differs] for path, of_field in rows.items()}
    chosen = CHOSEN if settings else (*CHOSEN, *(path for path in rows if path.startswith("method.")))
    shown = {*chosen, *RESULTS, _PERFORMANCE}
    outcome = Group("Outcome", tuple(row for path in RESULTS for row in rows[path][:1]))
    return SideBySide(
        records=tuple(records),
        chosen=(
            *(row for path in dict.fromkeys(chosen) for row in differing[path]),
            *(row for row in settings if row.differs),
        ),
        results=(outcome, *_suites(records)),
        rest=tuple(_rest(section, names, differing, shown) for section, names in sections.items() if names),
        digests=tuple(row for row in _digests(records) if row.differs),
        equal=sum(not of_field for of_field in differing.values()),
    )


def _any_has(records: Sequence[Read], section: str, name: str) -> bool:
    return any(name in record.sections.get(section, {}) for record in records)


def _rest(
    section: str, names: Collection[str], differing: Mapping[str, Sequence[Row]], shown: Collection[str]
) -> Group:
    """The section's fields, without the rows that are shown before it."""
    paths = [FIELDS[section][name].path for name in names]
    return Group(
        TITLES[section],
        tuple(row for path in paths if path not in shown for row in differing[path]),
        tuple(field_facts(path).label for path in paths if not differing[path]),
    )


def without_digests(text: str) -> str:
    return _DIGEST.sub("…", text)


def _entry(record: Read, path: str) -> Mapping[str, Any] | None:
    section, _, name = path.partition(".")
    return record.sections.get(section, {}).get(name)


def _field(path: str, records: Sequence[Read]) -> list[Row]:
    """The field's words, with its sources where those differ; where all words are alike, the parts of its value."""
    label, entries = field_facts(path).label, [_entry(record, path) for record in records]
    sources = {entry.get("source") for entry in entries if entry is not None}
    values = [(entry or {}).get("value") for entry in entries]
    words = tuple(_words(entry, with_source=len(sources) > 1) for entry in entries)
    row = Row(label, path, words, differences(values))
    if row.differs or path == _PERFORMANCE:
        return [row]
    parts = places(values, noun=path.rpartition(".")[2])
    return [row, *(_part(label, path, at) for at in parts if not any(map(is_digest, at.values)))]


def _part(label: str, path: str, at: Place) -> Row:
    """A place in the values of a field."""
    words = (setting_words(at.path) if path.startswith("method.") else "") or at.words
    return Row(
        f"{label}: {words}" if words else label,
        f"{path}{'' if at.path[:1] in ('', '[') else '.'}{at.path}",
        tuple(None if value is MISSING else value_words(value, at.path) for value in at.values),
        differences(at.values) if counts(at.path) else (),
    )


def _words(entry: Mapping[str, Any] | None, *, with_source: bool) -> str | None:
    if entry is None:
        return None
    if "withheld" in entry:
        return f"withheld: for {AUDIENCE_WORDS[entry['audience']]}"
    text = without_digests(entry["text"])
    return f"{text} ({entry['source']})" if with_source else text


_FIGURES = (
    ("problems", 1, ("problems",), 1, ""),
    ("before", 2, ("before", "share"), 100, " points"),
    ("after", 3, ("after", "share"), 100, " points"),
    ("difference in points, 95 %", 4, ("change", "difference"), 100, " points"),
    ("verdict", 6, ("verdict",), 1, ""),
)
"""Rows of a suite: label, cell of `Compared`, and the number that differences are of, with its scale and unit."""


def _suites(records: Sequence[Read]) -> list[Group]:
    """Every suite of any record, in the order in which they first come."""
    values = [(_entry(record, _PERFORMANCE) or {}).get("value") or () for record in records]
    columns = [{suite["suite"]: suite for suite in suites} for suites in values]
    groups = []
    for name in dict.fromkeys(name for column in columns for name in column):
        suites = [column.get(name) for column in columns]
        cells = [suite and compared(Comparison.model_validate(suite)).cells for suite in suites]
        rows = []
        for label, cell, path, scale, unit in _FIGURES:
            numbers = [dig(suite, *path) for suite in suites]
            scaled = [scale * n if isinstance(n, int | float) else None for n in numbers]
            texts = tuple(of_suite[cell] if of_suite else None for of_suite in cells)
            rows.append(Row(label, f"{_PERFORMANCE}.{name}", texts, differences(scaled, unit)))
        groups.append(Group(next(filter(None, cells))[0], tuple(rows)))
    return groups


def _digests(records: Sequence[Read]) -> Iterator[Row]:
    yield Row("Seal", "seal", tuple(record.seal for record in records))
    for section, names in FIELDS.items():
        for name, facts in names.items():
            values = [(_entry(record, facts.path) or {}).get("value") for record in records]
            for at in places(values, noun=name, whole=True):
                if any(map(is_digest, at.values)):
                    yield _part(facts.label, f"{section}.{name}", at)
    for path in sorted({path for record in records for path in record.files}):
        files = [record.files.get(path) for record in records]
        yield Row(f"Sealed file {path}", path, tuple(file["sha256"] if file else None for file in files))
