"""What a status says of a record's life, as a value and in words. Reads; writes nothing."""

from datetime import datetime
from typing import Any

from django.db.models import Max, Q

from cohort.base.environment import environment
from cohort.evidence.status import SCHEMA, written
from cohort.records.after_seal.rules import (
    REPORTED,
    Decision,
    SignRole,
    Standing,
    counted_reports,
    counts_of,
    standing_of,
)
from cohort.records.models import Audience, Record, RecordEntry

AUDIENCE_OF = {
    Audience.PUBLIC: Audience.PUBLIC,
    Audience.DOWNSTREAM: Audience.PUBLIC,
    Audience.AUTHORITY: Audience.AUTHORITY,
    Audience.INTERNAL: Audience.AUTHORITY,
}
"""By the audience of a card, which of the two statuses it gets: as the public page shows it, without names and counts
of what was reported, or with them."""
_NOT_SHOWN = "not in the status for this audience"


def life_of(record: Record, audience: str, log_name: str) -> dict[str, Any]:
    """The status's document without its own times and the record's title, which never changes. `audience`: public or
    authority."""
    entries = list(record.entries.select_related("by").order_by("pk"))
    standing = standing_of(entries)
    after = Q(end=record.end, version__gt=record.version) | Q(end__gt=record.end)
    later = Record.objects.filter(after, run=record.run_id).only("end", "version", "seal", "sealed_at")
    newest_first = list(later.order_by("-end", "-version"))
    newer = next((each for each in newest_first if each.end == record.end), None)
    following = next((each for each in newest_first if each.end > record.end), None)
    named = audience != Audience.PUBLIC
    name, words = _state(standing, newer, named)
    return {
        "schema": SCHEMA,
        "audience": audience,
        "issuer": {"address": environment().public_url.rstrip("/"), "log": log_name},
        "record": {
            "run": record.run_id,
            "end": record.end,
            "version": record.version,
            "seal": record.seal,
            "sealed_at": written(record.sealed_at),
        },
        "issue": record.cards.aggregate(newest=Max("issue"))["newest"] or 0,
        "state": {"name": name, "words": words},
        "sign_offs": [_sign_off(entry, named) for entry in standing.signed],
        "revoked": _revoked(standing),
        "superseded_by": _later(newer),
        "later_end": _later(following),
        "entries": counts_of(entries) if named else None,
    }


def whole(life: dict[str, Any], title: str, issued: datetime, until: datetime) -> dict[str, Any]:
    """The whole document. `title`: as the record was sealed with it."""
    return {
        **life,
        "record": {**life["record"], "title": title},
        "issued_at": written(issued),
        "valid_until": written(until),
    }


def _state(standing: Standing, newer: Record | None, named: bool) -> tuple[str, str]:
    if standing.revocation is not None:
        return "revoked", f"Revoked on {standing.revocation.at:%Y-%m-%d}: do not rely on this record."
    if newer is not None:
        return "superseded", f"Superseded by version {newer.version}, sealed on {newer.sealed_at:%Y-%m-%d}: use that."
    rejected = [entry for entry in standing.signed if entry.decision == Decision.REJECTED]
    if rejected:
        return "rejected", f"Rejected by {' and by '.join(_who(entry, named) for entry in rejected)}."
    match standing.signed:
        case []:
            return "not signed off", "Not signed off: neither the operator nor a reviewer has signed."
        case [entry]:
            other = SignRole.REVIEWER if entry.role == SignRole.OPERATOR else SignRole.OPERATOR
            return "partly signed off", f"Partly signed off: by {_who(entry, named)}; the {other.value} has not signed."
        case signed:
            return "signed off", f"Signed off by both: {' and '.join(_who(entry, named) for entry in signed)}."


def _who(entry: RecordEntry, named: bool) -> str:
    name = f" {entry.by.username}" if named else ""
    return f"the {entry.role}{name} on {entry.at:%Y-%m-%d}"


def _sign_off(entry: RecordEntry, named: bool) -> dict[str, Any]:
    by = entry.by.username if named else None
    return {"role": entry.role, "decision": entry.decision, "at": written(entry.at), "by": by}


def _revoked(standing: Standing) -> dict[str, Any] | None:
    entry = standing.revocation
    return None if entry is None else {"at": written(entry.at), "reason": entry.text}


def _later(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    at = written(record.sealed_at)
    return {"end": record.end, "version": record.version, "seal": record.seal, "sealed_at": at}


def plain_moment(text: str) -> str:
    """2026-11-22T10:00:00Z as people write it."""
    return f"{text[:10]} {text[11:19]} UTC"


def rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, text) for people; texts may be foreign."""
    record, counts = document["record"], document["entries"]
    listed = [("Record", f"{record['title']}: run {record['run']}, end {record['end']}, version {record['version']}")]
    listed += [("Sealed", plain_moment(record["sealed_at"])), ("Seal", record["seal"])]
    if revoked := document["revoked"]:
        listed += [("Revoked", plain_moment(revoked["at"])), ("Reason", revoked["reason"])]
    if newer := document["superseded_by"]:
        listed.append(
            (
                "Superseded by",
                f"version {newer['version']}, sealed {plain_moment(newer['sealed_at'])}, seal {newer['seal']}",
            )
        )
    if later := document["later_end"]:
        words = f"end {later['end']}, sealed {plain_moment(later['sealed_at'])}, seal {later['seal']}"
        words += ": the run continued after this one"
        listed.append(("Later record of the run", words))
    signed = {entry["role"]: entry for entry in document["sign_offs"]}
    for role in SignRole:
        entry = signed.get(role.value)
        by = f" by {entry['by']}" if entry and entry["by"] else ""
        text = f"{entry['decision']}{by}, {plain_moment(entry['at'])}" if entry else "not signed"
        listed.append((f"Sign-off as {role.value}", text))
    reports = [(words, _NOT_SHOWN) for _, words in REPORTED.values()] if counts is None else counted_reports(counts)
    listed += [(f"{words.capitalize()} since the seal", text) for words, text in reports]
    listed += [("Newest issue of its cards", str(document["issue"]))]
    return listed
