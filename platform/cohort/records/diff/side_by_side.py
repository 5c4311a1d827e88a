"""Records next to each other, a column a record: what people chose first, then results, then all else that differs, and
digests last. Knows no Django."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.records.diff.compare import Read
from cohort.records.diff.values import one_line
from cohort.records.document_view import compared
from cohort.records.fields import FIELDS, TITLES, field_facts
from cohort.records.schema_types import AUDIENCE_WORDS, Comparison

CHOSEN = (
    "subject.base_model",
    "data.prompts",
    "data.heldout",
    "reward.source",
    "method.preset",
    "method.loss",
    "method.normalization",
)
"""Fields that state what people choose before the settings of the config."""
RESULTS = ("subject.outcome", "reward.course", "behaviour.safety_regressions")
"""Fields before the table of suites."""
_PERFORMANCE = "behaviour.performance"
_DIGEST = re.compile(r"\b[0-9a-f]{12,128}(?![0-9A-Za-z])…?")
_WHOLE = re.compile(r"(?:[\w-]+:)?[0-9a-f]{32,128}")


@dataclass(frozen=True)
class Row:
    label: str
    path: str
    """`section.field` and, of a part of its value, the path in it."""
    cells: tuple[str | None, ...]
    """One for each record, in their order; None where it has none."""

    @property
    def marked(self) -> list[tuple[str | None, bool]]:
        """Each cell, and whether it is another than the first."""
        return [(cell, cell != self.cells[0]) for cell in self.cells]

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1


@dataclass(frozen=True)
class Group:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class SideBySide:
    records: tuple[Read, ...]
    chosen: tuple[Row, ...]
    """Those that differ: fields, then settings."""
    results: tuple[Group, ...]
    """Outcome, then a group a suite; equal rows too."""
    rest: tuple[Group, ...]
    """All other fields that differ, by section."""
    digests: tuple[Row, ...]
    """Digests that differ, of the records, in their fields, and of the sealed files."""
    equal: int
    """Number of fields that are the same in all, but for digests."""


def side_by_side(records: Sequence[Read], settings: Sequence[Row] = ()) -> SideBySide:
    """`settings`: rows of the configs that were sealed, where the reader has them."""
    rows = {f"{section}.{name}": _field(f"{section}.{name}", records) for section in FIELDS for name in FIELDS[section]}
    differing = {path: [row for row in of_field if row.differs] for path, of_field in rows.items()}
    shown = {*CHOSEN, *RESULTS, _PERFORMANCE}
    rest = [
        Group(TITLES[section], tuple(row for name in names for row in differing[f"{section}.{name}"]))
        for section, names in ((s, [n for n in FIELDS[s] if f"{s}.{n}" not in shown]) for s in FIELDS)
    ]
    outcome = Group("Outcome", tuple(row for path in RESULTS for row in rows[path][:1]))
    return SideBySide(
        records=tuple(records),
        chosen=(*(row for path in CHOSEN for row in differing[path]), *(row for row in settings if row.differs)),
        results=(outcome, *_suites(records)),
        rest=tuple(group for group in rest if group.rows),
        digests=tuple(row for row in _digests(records) if row.differs),
        equal=sum(not of_field for of_field in differing.values()),
    )


def without_digests(text: str) -> str:
    return _DIGEST.sub("…", text)


def is_digest(value: Any) -> bool:
    """Whether a value of a field is a digest, or nothing but a collection that holds one."""
    if isinstance(value, str):
        return _WHOLE.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return any(map(is_digest, value.values()))
    return isinstance(value, list) and bool(value) and all(map(is_digest, value))


def _entry(record: Read, path: str) -> Mapping[str, Any] | None:
    section, _, name = path.partition(".")
    return record.sections.get(section, {}).get(name)


def _field(path: str, records: Sequence[Read]) -> list[Row]:
    """The field's words, with its sources where those differ; where all words are alike, the parts of its value."""
    label, entries = field_facts(path).label, [_entry(record, path) for record in records]
    sources = {entry.get("source") for entry in entries if entry is not None}
    row = Row(label, path, tuple(_words(entry, with_source=len(sources) > 1) for entry in entries))
    if row.differs or path == _PERFORMANCE:
        return [row]
    values = [dict(_leaves((entry or {}).get("value"))) for entry in entries]
    paths = list(dict.fromkeys(leaf for value in values for leaf in value))
    parts = (
        Row(
            f"{label}: {leaf}",
            f"{path}.{leaf}",
            tuple(one_line(value[leaf]) if leaf in value else None for value in values),
        )
        for leaf in paths
        if not any(is_digest(value.get(leaf)) for value in values)
    )
    return [row, *(part for part in parts if part.differs)]


def _words(entry: Mapping[str, Any] | None, *, with_source: bool) -> str | None:
    if entry is None:
        return None
    if "withheld" in entry:
        return f"withheld: for {AUDIENCE_WORDS[entry['audience']]}"
    text = without_digests(entry["text"])
    return f"{text} ({entry['source']})" if with_source else text


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of all that is no collection."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _leaves(child, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, value


def _suites(records: Sequence[Read]) -> list[Group]:
    """Every suite of any record, in the order in which they first come."""
    columns = []
    for record in records:
        entry = _entry(record, _PERFORMANCE) or {}
        columns.append(
            {suite["suite"]: compared(Comparison.model_validate(suite)) for suite in entry.get("value") or ()}
        )
    groups = []
    for name in dict.fromkeys(name for column in columns for name in column):
        path = f"{_PERFORMANCE}.{name}"
        of_suite = [column[name].cells if name in column else None for column in columns]
        title = next(cells[0] for cells in of_suite if cells is not None)
        labels = (("problems", 1), ("before", 2), ("after", 3), ("difference in points, 95 %", 4), ("verdict", 6))
        rows = (Row(label, path, tuple(cells[at] if cells else None for cells in of_suite)) for label, at in labels)
        groups.append(Group(title, tuple(rows)))
    return groups


def _digests(records: Sequence[Read]) -> Iterator[Row]:
    yield Row("Seal", "seal", tuple(record.seal for record in records))
    for section, names in FIELDS.items():
        for name, facts in names.items():
            leaves_of = [dict(_leaves((_entry(record, facts.path) or {}).get("value"))) for record in records]
            for leaf in dict.fromkeys(leaf for leaves in leaves_of for leaf in leaves):
                cells = [leaves.get(leaf) for leaves in leaves_of]
                if any(map(is_digest, cells)):
                    path = f"{section}.{name}.{leaf}".rstrip(".")
                    yield Row(
                        f"{facts.label}: {leaf}" if leaf else facts.label,
                        path,
                        tuple(None if cell is None else one_line(cell) for cell in cells),
                    )
    for path in sorted({path for record in records for path in record.files}):
        files = [record.files.get(path) for record in records]
        yield Row(f"Sealed file {path}", path, tuple(file["sha256"] if file else None for file in files))
