"""The digests of a record: how they are made, in one place for sealing and checking. Knows no Django."""

import hashlib
from collections.abc import Sequence
from typing import Any

import rfc8785

from cohort.governance.schema import SCHEMA, FileEntry, Record, Sealed

RECORD_FILE = "record.json"
CARD_FILE = "CARD.md"
READING_COPIES = (CARD_FILE, "card.html")
"""Made from the record, for people; every other file is data."""


def canonical(value: Any) -> bytes:
    """RFC 8785."""
    return rfc8785.dumps(value)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def record_digest(record: Record) -> str:
    return sha256(canonical(record.model_dump(mode="json")))


def data_files_digest(files: Sequence[FileEntry]) -> str:
    listed = sorted((entry for entry in files if entry.path not in READING_COPIES), key=lambda entry: entry.path)
    return sha256(canonical([entry.model_dump(mode="json") for entry in listed]))


def seal_of(sealed: dict[str, Any]) -> str:
    """Over the record and the digests of all other files: the one digest that people compare."""
    return sha256(canonical({name: value for name, value in sealed.items() if name != "seal"}))


def close(record: Record, files: Sequence[FileEntry]) -> tuple[Sealed, bytes]:
    """record.json, as a value and as its bytes."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "record": record.model_dump(mode="json"),
        "record_digest": record_digest(record),
        "files": [entry.model_dump(mode="json") for entry in sorted(files, key=lambda entry: entry.path)],
    }
    body["seal"] = seal_of(body)
    content = canonical(body)
    return Sealed.model_validate_json(content), content
