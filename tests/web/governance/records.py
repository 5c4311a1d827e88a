"""Records and cards for tests: put into the database as sealing leaves them, or sealed, and read back."""

import json
import zipfile
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from cohort import artifacts
from cohort.audit.models import AuditEntry
from cohort.environment import environment
from cohort.evidence import record as evidence
from cohort.evidence.canonical import canonical
from cohort.evidence.verify import verify_card
from cohort.governance.models import Audience, Card, Record
from cohort.governance.parts import Entry
from cohort.governance.schema import Document
from cohort.runs.models import Run
from tests.web.governance.made_reading import document

SEALED = datetime(2026, 11, 22, 10, tzinfo=UTC)


def put(
    run: Run,
    made: dict[str, Any] | None = None,
    *,
    supersedes: Record | None = None,
    sealed_at: datetime = SEALED,
    **head: Any,
) -> Record:
    """A sealed record of the run with a document made by hand. `head`: what its head says other than the run's own
    name and number."""
    made = made or document(text="said of it")
    whole = {"title": run.name, "run": run.pk, "end": 1, "version": 1, "state": "succeeded", **head}
    made = {**made, "head": {**made["head"], **whole}}
    made["record_root"] = evidence.record_root(made)
    made["seal"] = evidence.seal_of(made)
    return Record.objects.create(
        run=run,
        end=whole["end"],
        version=whole["version"],
        supersedes=supersedes,
        fence=1,
        schema_version=made["schema"],
        document=canonical(made).decode(),
        seal=made["seal"],
        record_root=made["record_root"],
        fields_stated=60,
        fields_total=72,
        sealed_at=sealed_at,
    )


def put_first_schema(run: Run, body: dict[str, Any] | None = None, *, end: int = 1) -> Record:
    """A record of the first schema, from before there were audiences."""
    return Record.objects.create(
        run=run,
        end=end,
        fence=1,
        schema_version="cohort-record/1",
        document=json.dumps({"record": {"state": "failed"}, **(body or {})}),
        seal="7" * 64,
        record_root="8" * 64,
        fields_stated=30,
        fields_total=60,
        sealed_at=SEALED,
    )


def issue(record: Record, content: bytes = b"a card", *, audience: str = Audience.PUBLIC, number: int = 1) -> Card:
    """A card of these bytes."""
    stored = artifacts.put(f"cards/{record.seal[:16]}-{audience}-{number}.zip", iter([content]))
    return Card.objects.create(
        record=record,
        audience=audience,
        issue=number,
        artifact=stored.key,
        sha256=stored.sha256,
        size=stored.size,
        issued_at=SEALED,
    )


# ---------------------------------------------------------------------- reading


def entry(record: Record, path: str) -> Entry:
    found = Document.model_validate_json(record.document).entry(path)
    assert isinstance(found, Entry)
    return found


def content_of(card: Card) -> bytes:
    return b"".join(artifacts.read_chunks(card.artifact))


def files_of(card: Card) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content_of(card))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def saved(card: Card, folder: Path) -> Path:
    path = folder / f"{card.pk}.zip"
    path.write_bytes(content_of(card))
    return path


def accepted(card: Card, folder: Path) -> bool:
    """Whether `cohort verify` takes the card."""
    return verify_card(saved(card, folder)).accepted


def stored_cards(run: Run) -> list[str]:
    """Files of this run's cards in the artifact store, whole or half."""
    folder = Path(environment().artifacts_url.removeprefix("file://")) / "cards"
    return sorted(f"cards/{path.name}" for path in folder.glob(f"{run.pk}-*"))


def logged(kind: str) -> list[dict[str, Any]]:
    """The audit log's entries of this kind, oldest first."""
    return [json.loads(bytes(row.body)) for row in AuditEntry.objects.filter(kind=kind).order_by("pk")]
