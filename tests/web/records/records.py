"""Records and cards for tests: put into the database as sealing leaves them, or sealed, and read back."""

import json
import re
import zipfile
from datetime import UTC, datetime
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.base import artifacts
from cohort.evidence import record as evidence
from cohort.evidence.canonical import canonical
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.check import References
from cohort.evidence.verify.signed import log_keys
from cohort.records.models import Audience, Card, Record
from cohort.records.schema import Document
from cohort.records.schema_types import Entry
from cohort.runs.models import Run
from tests.factories.documents import document
from tests.web.pages import html

TRACES = "traces/steps-000001-000100.jsonl"
SEALED = datetime(2026, 11, 22, 10, tzinfo=UTC)
VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "TIME"),
    (r"\d{1,2} [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC", "TIME"),
    (r"\b(?!([0-9a-f])\1{63})[0-9a-f]{64}\b", "SHA256"),
    (r"sha256 [0-9a-f]{12}…", "sha256 …"),
    (r"\b[0-9a-f]{16}…", "DIGEST…"),
    (r"card-[0-9a-f]{16}", "card-SHORT"),
    (r"\b[0-9a-f]{4}( [0-9a-f]{4}){3}\b", "SHORT"),
    (r"run ≠ changed \d+ \d+", "run ≠ changed N N"),
    (r"\b\d{1,2} [A-Z][a-z]{2} \d{4}\b", "DAY"),
    (r"\b\d+ kB\b", "N kB"),
    (r"\b\d[\d.,]* m?s of devices\b", "N s of devices"),
    (r"(\d\.\d{10})\d+", r"\1"),
    (r"(?i)\b(run|job|entry|index)([ -])\d+(,\d{3})*", r"\1\2N"),
)
"""What no two records of the same facts share."""


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
    return Document.model_validate_json(record.document).entry(path)


def content_of(card: Card) -> bytes:
    return b"".join(artifacts.read_chunks(card.artifact))


def files_of(card: Card) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content_of(card))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def cards_of(record: Record) -> dict[str, dict[str, bytes]]:
    return {audience: files_of(record.card(audience)) for audience in AUDIENCES}


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def saved(card: Card, folder: Path) -> Path:
    path = folder / f"{card.pk}.zip"
    path.write_bytes(content_of(card))
    return path


def accepted(card: Card, folder: Path) -> bool:
    """Whether `cohort verify` takes the card, with the keys of this platform."""
    return verify_card(saved(card, folder), platform_keys()).accepted


def platform_keys() -> References:
    """This platform's keys.json, as its page gives it."""
    return References((log_keys(audit.keys_file()),))


def stored(run_id: int) -> list[str]:
    """Files of this run's cards in the artifact store, whole or half."""
    names = (*artifacts.sizes("cards"), *artifacts.unfinished("cards"))
    return sorted(f"cards/{name}" for name in names if name.startswith(f"{run_id}-"))


def logged(kind: str) -> list[dict[str, Any]]:
    """The audit log's entries of this kind, oldest first."""
    return [json.loads(bytes(row.body)) for row in AuditEntry.objects.filter(kind=kind).order_by("pk")]


# ---------------------------------------------------------------------- for golden files


def stripped(value: Any) -> Any:
    """Without what varies: salts, ids, times, and digests of what varies. Of a probe's classes only the first whole."""
    if isinstance(value, dict):
        return {name: _stripped(name, one) for name, one in value.items() if name != "salt"}
    if isinstance(value, list):
        return [stripped(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, str):
        for pattern, word in VARIES:
            value = re.sub(pattern, word, value)
    return value


def _stripped(name: str, value: Any) -> Any:
    if name in ("id", "checkpoint", "index"):
        return value if value is None else "N"
    if name == "stages" and value and all("gave" in one for one in value):
        return stripped([{**one, "run": "N", "to": "N"} for one in value])
    if name in ("earlier_runs", "runs", "settings_from", "trained_by") and value:
        return stripped([{**one, "run": "N"} for one in (value if isinstance(value, list) else [value])])
    if name == "classes" and isinstance(value, list):
        return [stripped(value[0]), *(one["name"] for one in value[1:])]
    return stripped(value)


def page_text(response: Any) -> str:
    """What stands on the page, a line for each part of it, without what varies."""
    page = html(response)
    main = re.sub(r"(?s)<(script|style|svg|template).*?</\1>|<option.*?</option>", " ", page.partition("<main")[2])
    lines_of = re.sub(r"</?(div|p|li|tr|h\d|dt|dd|summary|legend|details|section|form|table)\b[^>]*>", "\n", "<" + main)
    text = (
        " ".join(line.split())
        for line in unescape(re.sub(r"<[^>]*>", " ", lines_of)).replace("\u00a0", " ").split("\n")
    )
    return str(stripped("\n".join(line for line in text if line)))
