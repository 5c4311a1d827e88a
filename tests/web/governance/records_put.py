"""Records put into the database as sealing leaves them, with documents made by hand: for tests of what comes after."""

import json
from datetime import UTC, datetime
from typing import Any

from cohort import artifacts
from cohort.evidence import record as evidence
from cohort.evidence.canonical import canonical, sha256
from cohort.governance.models import Audience, Card, Record
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
    """A sealed record of the run. `head`: what its head says other than the run's own name and number."""
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


def issue(record: Record, content: bytes = b"a card", *, audience: str = Audience.PUBLIC, number: int = 1) -> Card:
    """A card of these bytes."""
    stored = artifacts.put(f"cards/{record.seal[:16]}-{audience}-{number}.zip", iter([content]))
    assert stored.sha256 == sha256(content)
    return Card.objects.create(
        record=record,
        audience=audience,
        issue=number,
        artifact=stored.key,
        sha256=stored.sha256,
        size=stored.size,
        issued_at=SEALED,
    )


def opened(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.document)
    return found
