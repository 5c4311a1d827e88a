"""A record's document as the diff reads it: of any audience. Knows no Django."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.records.fields import FIELDS, TITLES
from cohort.records.schema import SCHEMA

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
    files = {one["path"]: one for one in document.get("files", ())}
    if schema == SCHEMA:
        head = {name: document["head"].get(name) for name in _HEAD}
        return Read(schema, head, document["sections"], files, document["seal"])
    raise NotARecord(f"{schema!a} is no schema of a record that can be compared here")


def section_order(*documents: Read) -> list[str]:
    """Sections of any of them, those that today's records have in their order, the others after."""
    found = {name for one in documents for name in one.sections}
    return [name for name in FIELDS if name in found] + sorted(found - FIELDS.keys())


def field_order(section: str, *documents: Read) -> list[str]:
    found = {name for one in documents for name in one.sections.get(section, {})}
    known = FIELDS.get(section, {})
    return [name for name in known if name in found] + sorted(found - known.keys())


def title_of(section: str) -> str:
    return TITLES.get(section) or _plain(section)


def label_of(section: str, field: str) -> str:
    known = FIELDS.get(section, {}).get(field)
    return known.label if known is not None else _plain(field)


def _plain(name: str) -> str:
    return name.replace("_", " ").capitalize()
