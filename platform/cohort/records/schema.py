"""record.json of a sealed run, as a type and as JSON Schema 2020-12 (docs/record-schema.json).

A field that nobody filled says "not stated", an evaluation that was not run says "not evaluated"; nothing is ever
invented. Knows no Django and no torch. `python -m cohort.records.schema` prints the JSON Schema.
"""

import json
import sys
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from cohort.records.fields import COMMON_FIELDS, FIELDS, OPTIONAL, STAGE_FIELDS, TITLES
from cohort.records.schema_types import Audience, Comparison, Entry, FileEntry, Head, Part, Sha256, Withheld

SCHEMA = "cohort-record/2"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_COMPARISONS = TypeAdapter(list[Comparison])


class Document(Part):
    """record.json: RFC 8785 canonical bytes. The seal is the same in the card of every audience."""

    schema_: Annotated[Literal["cohort-record/2"], Field(alias="schema")]
    audience: Audience
    """Who this copy is for."""
    head: Head
    sections: dict[str, dict[str, Entry | Withheld]]
    """Section → field → its entry, or its hash where this audience does not get it. Every field is there, but for the
    section `stage`, which a GRPO run's record lacks, and another's has with the fields of its kind."""
    record_root: Sha256
    """Root of the RFC 6962 Merkle tree over the head and then the fields, sorted by section and name."""
    files: list[FileEntry]
    """The sealed data files, sorted by path; the same in every card."""
    seal: Sha256
    """SHA-256 of the canonical JSON of {schema, record_root, files}: the one digest to compare."""

    @model_validator(mode="after")
    def _every_field_is_there(self) -> "Document":
        expected = {section: set(fields) for section, fields in COMMON_FIELDS.items()}
        actual = {section: set(fields) for section, fields in self.sections.items()}
        if "stage" in actual:
            kind = getattr(self.sections["stage"].get("kind"), "value", None)
            expected["stage"] = set(STAGE_FIELDS.get(str(kind), ("kind",)))
        for section in expected.keys() | actual.keys():
            odd = expected.get(section, set()) ^ actual.get(section, set())
            if odd:
                raise ValueError(f"{section}.{min(odd)}: is missing, or is not a field of {SCHEMA}")
        _COMPARISONS.validate_python(self._comparisons() or [])
        return self

    def entry(self, path: str) -> Entry | Withheld:
        """Of `section.field`. Raises KeyError for none."""
        section, _, name = path.partition(".")
        return self.sections[section][name]

    @property
    def comparisons(self) -> list[Comparison]:
        """Every suite before and after; none when nothing was evaluated or this audience does not get them."""
        return _COMPARISONS.validate_python(self._comparisons() or [])

    def _comparisons(self) -> Any:
        entry = self.entry("behaviour.performance")
        return entry.value if isinstance(entry, Entry) else None

    def counts(self) -> tuple[int, int]:
        """(fields that are stated, measured or do not apply; all fields). What is withheld counts as neither stated nor
        missing: it is in no number."""
        entries = [entry for part in self.sections.values() for entry in part.values() if isinstance(entry, Entry)]
        return sum(not entry.missing for entry in entries), len(entries)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of record.json."""
    whole = Document.model_json_schema(by_alias=True)
    compared = _COMPARISONS.json_schema(ref_template="#/$defs/{model}")
    parts = whole["$defs"] | compared.pop("$defs")
    parts["Compared"] = {
        **parts["Entry"],
        "properties": {
            **parts["Entry"]["properties"],
            "value": {"anyOf": [compared, {"type": "null"}], "description": "One comparison a suite, of every suite."},
        },
    }
    sections = {
        section: {
            "title": TITLES[section],
            "type": "object",
            "properties": {name: _field_schema(facts.path, facts.label) for name, facts in fields.items()},
            "required": ["kind"] if section in OPTIONAL else list(fields),
            "additionalProperties": False,
        }
        for section, fields in FIELDS.items()
    }
    whole["properties"]["sections"] |= {
        "properties": sections,
        "required": [section for section in sections if section not in OPTIONAL],
        "additionalProperties": False,
    }
    return {"$schema": DIALECT, "$id": f"urn:{SCHEMA.replace('/', ':')}", **whole, "$defs": dict(sorted(parts.items()))}


def _field_schema(path: str, label: str) -> dict[str, Any]:
    kind = "Compared" if path == "behaviour.performance" else "Entry"
    return {"title": label, "anyOf": [{"$ref": f"#/$defs/{kind}"}, {"$ref": "#/$defs/Withheld"}]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n")
