"""The difference of two records, section by section, field by field, suite by suite, file by file. Knows no Django."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from cohort.base import artifacts
from cohort.evidence.canonical import dig, sha256
from cohort.records.diff.values import Change, Kind, changes, difference, same
from cohort.records.diff.words import key_words, setting_words
from cohort.records.fields import FIELDS, TITLES
from cohort.records.models import Audience, Card, Record
from cohort.records.schema import SCHEMA

_CELLS = (
    ("problems", ("problems",), "count"),
    ("share before", ("before", "share"), "share"),
    ("share after", ("after", "share"), "share"),
    ("difference", ("change", "difference"), "points"),
    ("minimum detectable difference", ("change", "mde"), "size"),
    ("margin", ("margin",), "size"),
    ("verdict", ("verdict",), "words"),
)


@dataclass(frozen=True)
class Cell:
    name: str
    unit: str
    """count, share (of 1), points (a difference of shares), size (the same without a sign) or words."""
    before: Any
    after: Any

    @property
    def equal(self) -> bool:
        return same(self.before, self.after)

    @property
    def difference(self) -> float | int | None:
        return difference(self.before, self.after)


@dataclass(frozen=True)
class SuiteDiff:
    suite: str
    kind: Kind
    cells: tuple[Cell, ...]
    """The figures of a table's row, equal ones too."""
    others: tuple[Change, ...]
    """All else that differs: intervals, slices, the clean subset, protocol."""


def suite_diffs(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> tuple[SuiteDiff, ...]:
    """Every suite of either, in the order of the second, then those only in the first."""
    first, second = {suite["suite"]: suite for suite in before}, {suite["suite"]: suite for suite in after}
    return tuple(
        _suite(name, first.get(name), second.get(name))
        for name in [*second, *(suite for suite in first if suite not in second)]
    )


def _suite(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> SuiteDiff:
    cells = tuple(Cell(label, unit, dig(before, *path), dig(after, *path)) for label, path, unit in _CELLS)
    if before is None or after is None:
        return SuiteDiff(name, Kind.ADDED if before is None else Kind.REMOVED, cells, ())
    shown = {".".join(path) for _, path, _ in _CELLS}
    others = tuple(change for change in changes(before, after) if change.path not in shown)
    kind = Kind.EQUAL if not others and all(cell.equal for cell in cells) else Kind.CHANGED
    return SuiteDiff(name, kind, cells, others)


NAME = "config.yaml"
MOST_BYTES = 4 * 1024 * 1024


def sealed_config(record: Record, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config as it was sealed; None where no card with it is kept, or it is not the bytes that were sealed."""
    entry = next((listed for listed in document["files"] if listed["path"] == NAME), None)
    held = Card.objects.filter(record=record, audience__in=[Audience.DOWNSTREAM, Audience.INTERNAL])
    card = held.order_by("-issue", "audience").first()
    if entry is None or card is None or entry["size"] > MOST_BYTES:
        return None
    try:
        with artifacts.open_read(card.artifact) as stored, zipfile.ZipFile(stored) as packed, packed.open(NAME) as file:
            content = file.read(entry["size"] + 1)
    except (FileNotFoundError, zipfile.BadZipFile, KeyError):
        return None
    if sha256(content) != entry["sha256"]:
        return None
    config = yaml.safe_load(content)
    return config if isinstance(config, dict) else None


_HEAD = ("title", "run", "end", "version", "sealed_at", "state")


class NotARecord(ValueError):
    """The document is of no schema that this platform knows."""


@dataclass(frozen=True)
class Read:
    schema: str
    head: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Mapping[str, Any]]]
    files: Mapping[str, Mapping[str, Any]]
    """By path."""
    seal: str


def read(document: Mapping[str, Any]) -> Read:
    """Raises NotARecord."""
    schema = document.get("schema")
    files = {file["path"]: file for file in document.get("files", ())}
    if schema == SCHEMA:
        head = {name: document["head"].get(name) for name in _HEAD}
        return Read(schema, head, document["sections"], files, document["seal"])
    raise NotARecord(f"{schema!a} is no schema of a record that can be compared here")


def _ordered(known: Mapping[str, Any], *present: Mapping[str, Any]) -> list[str]:
    """Names of any of `present`: those that are known in their order, the others after."""
    names = {name for named in present for name in named}
    return [name for name in known if name in names] + sorted(names - known.keys())


COMPARISONS = "behaviour.performance"
CONFIG = "method.config"
_MARKS = ("source", "evidence", "audience", "note")
"""Metadata of an entry. The salt is random and is not compared."""


@dataclass(frozen=True)
class FieldDiff:
    section: str
    name: str
    label: str
    kind: Kind
    before: str | None
    """The value in words; None where there is none or it is withheld."""
    after: str | None
    values: tuple[Change, ...] = ()
    """Where the values for machines differ."""
    marks: tuple[Change, ...] = ()
    """Differences of source, evidence, audience and note."""
    withheld: str = ""
    """Of a withheld field: before, after or both."""

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def words_differ(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class SectionDiff:
    name: str
    title: str
    fields: tuple[FieldDiff, ...]
    suites: tuple[SuiteDiff, ...] = ()
    """Of the section about behaviour: every suite of either."""

    @property
    def differing(self) -> tuple[FieldDiff, ...]:
        return tuple(field for field in self.fields if field.kind != Kind.EQUAL)

    @property
    def equal(self) -> tuple[FieldDiff, ...]:
        return tuple(field for field in self.fields if field.kind == Kind.EQUAL)


@dataclass(frozen=True)
class FileDiff:
    path: str
    kind: Kind
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True)
class Diff:
    before: Read
    after: Read
    head: tuple[Change, ...]
    sections: tuple[SectionDiff, ...]
    files: tuple[FileDiff, ...]

    @property
    def identical(self) -> bool:
        """Whether they are one record: the same seal."""
        return self.before.seal == self.after.seal

    @property
    def counts(self) -> dict[Kind, int]:
        """Number of fields by kind of change."""
        by_kind = dict.fromkeys(Kind, 0)
        for section in self.sections:
            for field in section.fields:
                by_kind[field.kind] += 1
        return by_kind

    @property
    def differing_files(self) -> tuple[FileDiff, ...]:
        return tuple(file for file in self.files if file.kind != Kind.EQUAL)


def diff(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    configs: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> Diff:
    """From the first record to the second: documents for any audience. Raises NotARecord.

    `configs`: the sealed config.yaml of both, where the reader has them; a record itself holds only their digests.
    """
    a, b = read(before), read(after)
    config_changes = tuple(map(_of_setting, changes(*configs or ({}, {}))))
    sections = tuple(_section(name, a, b, config_changes) for name in _ordered(FIELDS, a.sections, b.sections))
    return Diff(a, b, tuple(changes(a.head, b.head)), sections, _files(a.files, b.files))


def _section(section: str, a: Read, b: Read, config: tuple[Change, ...]) -> SectionDiff:
    known, old, new = FIELDS.get(section, {}), a.sections.get(section, {}), b.sections.get(section, {})
    fields = []
    for name in _ordered(known, old, new):
        label = known[name].label if name in known else key_words(name).capitalize()
        field = _field(section, name, label, old.get(name), new.get(name))
        fields.append(replace(field, values=config) if config and field.path == CONFIG else field)
    of, _, performance = COMPARISONS.partition(".")
    suites: tuple[SuiteDiff, ...] = ()
    if section == of:
        before, after = (entries.get(performance, {}).get("value") or () for entries in (old, new))
        suites = suite_diffs(before, after)
    return SectionDiff(section, TITLES.get(section) or key_words(section).capitalize(), tuple(fields), suites)


def _of_setting(change: Change) -> Change:
    """Under the label that the run form has for it."""
    return replace(change, words=setting_words(change.path) or change.words)


def _field(
    section: str, name: str, label: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> FieldDiff:
    withheld = _side(before, after)
    if before is None or after is None or withheld:
        kind = Kind.ADDED if before is None else Kind.REMOVED
        if before is not None and after is not None:
            kind = Kind.EQUAL if before == after else Kind.WITHHELD  # the same leaf: the same words, whatever they are
        return FieldDiff(section, name, label, kind, dig(before, "text"), dig(after, "text"), withheld=withheld)
    marks = tuple(
        Change(mark, Kind.CHANGED, before[mark], after[mark], mark) for mark in _MARKS if before[mark] != after[mark]
    )
    values = () if f"{section}.{name}" == COMPARISONS else tuple(changes(before["value"], after["value"], noun=name))
    if section == "method":
        values = tuple(map(_of_setting, values))
    equal = same(before["value"], after["value"]) and before["text"] == after["text"] and not marks
    kind = Kind.EQUAL if equal else Kind.CHANGED
    return FieldDiff(section, name, label, kind, before["text"], after["text"], values, marks)


def _side(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """On which side the field is withheld: before, after, both, or empty for neither."""
    hidden = [name for name, entry in (("before", before), ("after", after)) if "withheld" in (entry or {})]
    return "both" if len(hidden) == 2 else "".join(hidden)


def _files(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> tuple[FileDiff, ...]:
    diffs = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            kind = Kind.ADDED if a is None else Kind.REMOVED
        else:
            kind = Kind.EQUAL if a["sha256"] == b["sha256"] else Kind.CHANGED
        diffs.append(FileDiff(path, kind, a, b))
    return tuple(diffs)
