"""A sealed record, its cards and its files, as tests read them."""

import json
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cohort import artifacts
from cohort.evidence.verify.command import main as verify
from cohort.governance.models import Record
from cohort.governance.parts import Entry
from cohort.governance.schema import Document


def document(record: Record) -> Document:
    return Document.model_validate_json(record.document)


def said(record: Record) -> Any:
    """`said(record).reward.domain` is an entry; `comparisons`, `state`, `title` and `counts` are the document's."""
    found = document(record)
    sections = {name: SimpleNamespace(**fields) for name, fields in found.sections.items()}
    head = {"state": found.head.state, "title": found.head.title, "comparisons": found.comparisons}
    return SimpleNamespace(**sections, **head, counts=found.counts)


def entry(record: Record, path: str) -> Entry:
    found = document(record).entry(path)
    assert isinstance(found, Entry)
    return found


def card(record: Record, audience: str = "internal") -> zipfile.ZipFile:
    return zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(record.card(audience).artifact))))


def lines(archive: zipfile.ZipFile, name: str) -> list[Any]:
    return [json.loads(line) for line in archive.read(name).splitlines()]


def accepted(record: Record, folder: Path, audience: str = "internal") -> bool:
    """Whether `cohort verify` takes the card."""
    path = folder / f"{audience}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(record.card(audience).artifact)))
    return verify([str(path)]) == 0
