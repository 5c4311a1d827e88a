"""Reads of the log for its pages: entries by filter, what each changed, the newest head, keys and their history; and
the entry that a download leaves."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from cohort.accounts.models import Project, User
from cohort.audit.entries import log, who
from cohort.audit.models import AuditEntry, LogCheckpoint, LogCosignature, LogKey, LogPush
from cohort.evidence.checkpoint import parse as parse_checkpoint
from cohort.evidence.keys import parse_vkey
from cohort.evidence.note import open_note


def downloaded(
    request: HttpRequest, *, kind: str, subject: str, project: Project | None, data: dict[str, Any] | None = None
) -> None:
    """Log that this user downloads this. A HEAD request, which sends no content, leaves no entry.

    Raises NotLoggable as `entries.log`.
    """
    if request.method == "HEAD":
        return
    actor = who(request.user) if isinstance(request.user, User) else "anonymous"
    log(actor=actor, kind=kind, subject=subject, project=project, data=data)


ROWS = 100
COLUMNS = ("index", "at", "actor", "kind", "subject", "before", "after", "reason", "data", "nonce")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORMULA = re.compile(r"'|[\s\"]*[=+\-@\t\r＝＋－＠]")


class Filters(forms.Form):
    """What a person looks for; each field may be empty."""

    actor = forms.CharField(max_length=160, required=False, label="Who")
    kind = forms.CharField(max_length=60, required=False, label="What")
    subject = forms.CharField(max_length=200, required=False, label="To what")
    since = forms.DateField(required=False, label="From (UTC)", widget=forms.DateInput({"type": "date"}))
    until = forms.DateField(required=False, label="To (UTC)", widget=forms.DateInput({"type": "date"}))

    def entries(self, slug: str) -> QuerySet[AuditEntry]:
        """Entries of the project, newest first; of none with an empty slug. Nothing when a field is not valid."""
        rows = AuditEntry.objects.filter(project=slug).select_related("leaf").order_by("-id")
        if not self.is_valid():
            return rows.none()
        given = self.cleaned_data
        if actor := given["actor"]:
            rows = rows.filter(Q(actor=actor) | Q(actor__in=[f"user:{actor}", f"node:{actor}"]))
        for name in ("kind", "subject"):
            if given[name]:
                rows = rows.filter(**{name: given[name]})
        if given["since"]:
            rows = rows.filter(at__gte=datetime.combine(given["since"], time(), UTC))
        if given["until"]:
            rows = rows.filter(at__lte=datetime.combine(given["until"], time.max, UTC))
        return rows

    @property
    def in_use(self) -> bool:
        return bool(self.errors) or any(self.cleaned_data.values())


@dataclass(frozen=True)
class Change:
    field: str
    before: str | None
    """None where there was nothing."""
    after: str | None

    @property
    def digests(self) -> bool:
        """Whether the values are SHA-256 digests, of which only the beginning is shown."""
        return all(value is None or _DIGEST.fullmatch(value) for value in (self.before, self.after))


def page(matching: QuerySet[AuditEntry], *, before: int | None) -> dict[str, Any]:
    """`following`: id to continue before."""
    entries = list((matching.filter(pk__lt=before) if before is not None else matching)[: ROWS + 1])
    rows, following = [_row(entry) for entry in entries[:ROWS]], entries[ROWS - 1].pk if len(entries) > ROWS else None
    return {"rows": rows, "total": matching.count(), "following": following}


def kinds(slug: str) -> list[str]:
    return list(AuditEntry.objects.filter(project=slug).order_by("kind").values_list("kind", flat=True).distinct())


def _row(entry: AuditEntry) -> dict[str, Any]:
    """`index`: None while the entry waits for it; `data`: what else it holds, as JSON, empty where there is nothing."""
    content = json.loads(bytes(entry.body))
    changed = changes(content["before"], content["after"])
    data = json.dumps(content["data"], ensure_ascii=False, indent=2) if content["data"] else ""
    return {"entry": entry, "index": _index(entry), "changes": changed, "reason": content["reason"], "data": data}


def _index(entry: AuditEntry) -> int | None:
    leaf = getattr(entry, "leaf", None)
    return None if leaf is None else leaf.idx


def changes(before: Any, after: Any) -> list[Change]:
    """What differs, field by field where the values are objects. New fields that are empty are left out."""
    old = before if isinstance(before, dict) else {} if before is None else {"value": before}
    new = after if isinstance(after, dict) else {} if after is None else {"value": after}
    names = [*old, *(name for name in new if name not in old and new[name] not in ("", None))]
    return [
        Change(name, _text(old[name]) if name in old else None, _text(new[name]) if name in new else None)
        for name in names
        if name not in old or name not in new or old[name] != new[name]
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------- files


def json_lines(entries: QuerySet[AuditEntry]) -> Iterator[bytes]:
    """Each entry's exact bytes and a line end."""
    for entry in entries.iterator(chunk_size=500):
        yield bytes(entry.body) + b"\n"


def csv_lines(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    """For spreadsheets: what a cell would take for a formula has an apostrophe before it."""
    yield csv_line(COLUMNS)
    for entry in entries.iterator(chunk_size=500):
        content = json.loads(bytes(entry.body)) | {"index": _index(entry)}
        values = (content[name] for name in COLUMNS)
        yield csv_line(value if isinstance(value, int | None) else _text(value) for value in values)


def csv_line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(map(plain_cell, cells))
    return line.getvalue()


def plain_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, also after quotes or blanks, gets an apostrophe before it,
    and so does one that begins with an apostrophe: without the first of them, each is as it was. Numbers stay as they
    are."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


# ---------------------------------------------------------------------- the log itself


def newest_head() -> dict[str, Any] | None:
    """The newest checkpoint, opened."""
    row = LogCheckpoint.objects.order_by("-size").first()
    if row is None:
        return None
    opened = open_note(row.note, [parse_vkey(vkey) for vkey in LogKey.objects.values_list("vkey", flat=True)])
    return {"row": row, "checkpoint": parse_checkpoint(opened.text), "signed_by": list(opened.verified)}


def key_rows() -> list[dict[str, Any]]:
    """Newest first. `until`: size from which on the next key signs; None for today's."""
    rows = list(LogKey.objects.order_by("pk"))
    ends = [*(row.since_size for row in rows[1:]), None]
    keys = [{"row": row, "key": parse_vkey(row.vkey), "until": end} for row, end in zip(rows, ends, strict=False)]
    return keys[::-1]


def newest_cosignatures() -> list[LogCosignature]:
    """Of each witness its last one."""
    rows = LogCosignature.objects.select_related("checkpoint").order_by("witness", "-checkpoint__size")
    return list(rows.distinct("witness"))


def pushes() -> list[LogPush]:
    return list(LogPush.objects.order_by("target"))
