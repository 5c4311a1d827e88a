"""Signed statuses of the small cards, as a platform adds them to a download; each part can be made otherwise."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from cohort.evidence import checkpoint, dsse, merkle, status
from cohort.evidence.canonical import sha256
from cohort.evidence.keys import SigningKey
from tests.factories.small_cards import PLATFORM, Log, entry

PAGE, PAPER = b"<!doctype html><p>As status.json has it.</p>\n", b"%PDF-1.7 %%EOF"
WORDS = {
    "signed off": "Signed off by both: the operator on 2026-11-23 and the reviewer on 2026-11-24.",
    "not signed off": "Not signed off: neither the operator nor a reviewer has signed.",
    "rejected": "Rejected by the reviewer on 2026-11-24.",
    "revoked": "Revoked on 2026-11-25: do not rely on this record.",
    "superseded": "Superseded by version 2, sealed on 2026-11-25: use that.",
}
NOW = datetime.now(UTC).replace(microsecond=0)


def document(
    record: dict[str, Any], log: Log, state: str = "signed off", *, issued: datetime = NOW, days: int = 30
) -> dict[str, Any]:
    """What the status of this record.json says."""
    head = record["head"]
    later = {"end": 1, "version": 2, "seal": "2" * 64, "sealed_at": "2026-11-25T10:00:00Z"}
    revoked = {"at": "2026-11-25T10:00:00Z", "reason": "The reward paid for wrong answers."}
    return {
        "schema": status.SCHEMA,
        "audience": "public",
        "issuer": {"address": PLATFORM, "log": log.origin},
        "record": {name: head[name] for name in ("run", "end", "version", "title", "sealed_at")}
        | {"seal": record["seal"]},
        "issue": 1,
        "state": {"name": state, "words": WORDS[state]},
        "sign_offs": [],
        "revoked": revoked if state == "revoked" else None,
        "superseded_by": later if state == "superseded" else None,
        "later_end": None,
        "entries": None,
        "issued_at": status.written(issued),
        "valid_until": status.written(issued + timedelta(days=days)),
    }


def bundled(log: Log, files: dict[str, bytes], said: dict[str, Any], *, key: SigningKey | None = None) -> bytes:
    """status.json: logged, signed by the log's newest key or by `key`, proved under a new checkpoint."""
    payload = status.payload_of(said, {status.PAGE: PAGE, status.PAPER: PAPER})
    data = {"seal": said["record"]["seal"], "statuses": {said["audience"]: sha256(payload)}}
    body = entry(status.ENTRY_KIND, f"record:{len(log.bodies)}", data)
    index, old = log.append(body), size_of(files)
    return status.bundle(
        document=said,
        envelope=dsse.envelope(payload, dsse.PAYLOAD_TYPE, key or log.keys[-1]),
        log_entry=body,
        proof=merkle.write(index, log.nodes.inclusion(index, len(log.nodes)), log.checkpoint()),
        consistency={old: log.nodes.consistency(old, len(log.nodes))} if old <= len(log.nodes) else {},
        listed_keys=log.keys_file(),
    )


def size_of(files: dict[str, bytes]) -> int:
    """Of the log at the card's checkpoint."""
    note = merkle.parse(files["proof.tlog-proof"].decode()).checkpoint
    return checkpoint.parse(note.rpartition("\n\n")[0] + "\n").size


def downloaded(log: Log, files: dict[str, bytes], state: str = "signed off", **when: Any) -> dict[str, bytes]:
    """The card as it is handed out: with a status that was issued now."""
    said = document(json.loads(files["record.json"]), log, state, **when)
    return handed_out(files, bundled(log, files, said))


def handed_out(files: dict[str, bytes], content: bytes) -> dict[str, bytes]:
    return {**files, status.PAGE: PAGE, status.PAPER: PAPER, status.FILE: content}


def resigned(content: bytes, key: SigningKey) -> dict[str, Any]:
    """The parts of a status.json whose envelope another key signed."""
    parts: dict[str, Any] = json.loads(content)
    payload = base64.b64decode(parts["envelope"]["payload"])
    return parts | {"envelope": json.loads(dsse.envelope(payload, dsse.PAYLOAD_TYPE, key))}
