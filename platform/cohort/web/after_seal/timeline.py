"""The entries and events of a record, newest first, as a page shows them. Read-only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict
from django.urls import reverse

from cohort.accounts.models import Membership, Role, reaches
from cohort.audit.models import AuditEntry, AuditLeaf
from cohort.base.environment import environment
from cohort.records.after_seal.rules import Decision, Standing, standing_of
from cohort.records.models import Audience, Card, EntryKind, PublicLink, Record, RecordEntry
from cohort.records.policies.judged import gate_of
from cohort.web.accounts.views import person
from cohort.web.after_seal.offers import offers
from cohort.web.context import listed

ITEMS = 50
"""Entries and events on one page of the timeline."""


@dataclass(frozen=True)
class Item:
    at: datetime
    title: str
    who: str
    """Empty for events of the platform itself."""
    tone: str = ""
    sign: str = "·"
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    entry: RecordEntry | None = None
    corrects: int | None = None
    """Id of the entry that this one corrects."""
    corrects_on: int = 1
    """Page of the timeline that shows that entry."""
    corrected_by: int | None = None
    corrected_on: int = 1
    log: int | None = None
    """Id of its entry in the audit log."""
    order: int = field(default=0, compare=False)


def timeline(record: Record, entries: Sequence[RecordEntry]) -> list[Item]:
    """From the record's sealing on, newest first. `entries`: all of the record's, with who wrote them; their texts are
    left out, as a page shows those of some (`_with_texts`)."""
    corrected = {entry.data["corrects"]: entry.pk for entry in entries if "corrects" in entry.data}
    logged = _logged(record)
    items = [_entry(entry, corrected.get(entry.pk)) for entry in entries]
    items += [*_issued(record), *_links(record, logged)]
    later = Record.objects.filter(supersedes=record).only("pk", "seal", "sealed_at", "version").first()
    if later is not None:
        words = f"Superseded by version {later.version}, seal {later.short_digest} …"
        items.append(Item(later.sealed_at, words, "", tone="is-suspect", sign="»"))
    return sorted(items, key=lambda item: (item.at, item.order), reverse=True)


def _entry(entry: RecordEntry, corrected_by: int | None) -> Item:
    title, tone, sign = _titled(entry)
    return Item(
        at=entry.at,
        title=title,
        who=entry.by.username,
        tone=tone,
        sign=sign,
        facts=_facts(entry),
        entry=entry,
        corrects=entry.data.get("corrects"),
        corrected_by=corrected_by,
        log=entry.data.get("log"),
        order=entry.pk,
    )


def _with_texts(items: list[Item], pages: Mapping[int, int]) -> list[Item]:
    """`pages`: by the id of an entry, the page of the timeline that shows it."""
    pks = [item.entry.pk for item in items if item.entry is not None]
    texts = dict(RecordEntry.objects.filter(pk__in=pks).values_list("pk", "text"))
    return [
        replace(
            item,
            text=texts[item.entry.pk],
            corrects_on=pages.get(item.corrects or 0, 1),
            corrected_on=pages.get(item.corrected_by or 0, 1),
        )
        if item.entry is not None
        else item
        for item in items
    ]


def _titled(entry: RecordEntry) -> tuple[str, str, str]:
    if entry.kind == EntryKind.SIGN_OFF:
        return {
            Decision.APPROVED: (f"Approved as {entry.role}", "is-right", "✓"),
            Decision.REJECTED: (f"Rejected as {entry.role}", "is-wrong", "✕"),
            Decision.WITHDRAWN: (f"Sign-off as {entry.role} withdrawn", "is-suspect", "↶"),
        }[Decision(entry.decision)]
    return {
        EntryKind.REVOKED: ("Revoked", "is-wrong", "⊘"),
        EntryKind.SUPERSEDED: ("Superseded", "is-suspect", "»"),
        EntryKind.INCIDENT: (f"Incident, {entry.data.get('severity', '')}", "is-wrong", "!"),
        EntryKind.FEEDBACK: ("Feedback", "", "“"),
        EntryKind.MONITORING: ("Monitoring note", "", "≈"),
        EntryKind.OVERRIDE: ("Flag overridden", "is-suspect", "⚑"),
    }[EntryKind(entry.kind)]


def _facts(entry: RecordEntry) -> tuple[tuple[str, str], ...]:
    data = entry.data
    if entry.kind == EntryKind.SIGN_OFF:
        return (("role in the project then", str(data.get("member", ""))),)
    if entry.kind == EntryKind.INCIDENT:
        return (("happened", f"{datetime.fromisoformat(data['when']):%Y-%m-%d %H:%M} UTC"),)
    if entry.kind == EntryKind.FEEDBACK:
        return (("from", data["source"]),)
    if entry.kind == EntryKind.MONITORING:
        period = ("period", f"{data['from']} to {data['until']}")
        return (period, *((figure["name"], figure["value"]) for figure in data["figures"]))
    if entry.kind == EntryKind.OVERRIDE:
        return (("flag", data["what"]),)
    return ()


def _issued(record: Record) -> list[Item]:
    """That the record was sealed, and that cards of it were issued again."""
    cards = list(Card.objects.filter(record=record).order_by("issued_at", "pk"))
    indices = {card.log_index for card in cards if card.log_index is not None}
    logged: dict[int | None, int] = dict(AuditLeaf.objects.filter(idx__in=indices).values_list("idx", "entry_id"))
    which = f"version {record.version}" if record.version > 1 else "the record"
    first = next((logged.get(card.log_index) for card in cards if card.issue == 1 and card.log_index is not None), None)
    return [
        Item(record.sealed_at, f"Sealed: {which}", "", tone="is-right", sign="✓", log=first, order=-1),
        *(
            Item(
                card.issued_at,
                f"Card for {Audience(card.audience).label.lower()} issued again, issue {card.issue}",
                "",
                sign="↻",
                text=card.reason,
                log=logged.get(card.log_index),
            )
            for card in cards
            if card.issue > 1
        ),
    ]


def _links(record: Record, logged: dict[str, int]) -> list[Item]:
    items = []
    for link in PublicLink.objects.filter(record=record).select_related("by"):
        made, ended = logged.get(f"public_link_made {link.pk}"), logged.get(f"public_link_ended {link.pk}")
        items.append(Item(link.at, "Public page made", link.by.username, sign="◇", log=made))
        if link.ended_at is not None:
            items.append(Item(link.ended_at, "Public page withdrawn", "", sign="◇", log=ended))
    return items


def _logged(record: Record) -> dict[str, int]:
    """`public_link_made 3` → the id of that entry of the audit log."""
    rows = AuditEntry.objects.filter(subject=f"record:{record.pk}", kind__in=["public_link_made", "public_link_ended"])
    return {f"{row.kind} {json.loads(bytes(row.body))['data']['link']}": row.pk for row in rows}


class Life:
    """What came after a record's seal, for a member of its project."""

    def __init__(self, request: HttpRequest, record: Record, *, sent: tuple[str, QueryDict] | None = None) -> None:
        """`sent`: an action and what was typed for it, to be shown again."""
        entries, user = list(entries_of([record.pk]).defer("text")), person(request)
        role = Membership.objects.get(project=record.run.project_id, user=user).role
        self.record, self.standing = record, standings([record.pk])[record.pk]
        items = timeline(record, entries)
        pages = {item.entry.pk: at // ITEMS + 1 for at, item in enumerate(items) if item.entry is not None}
        self.items = listed(request, items, ITEMS, name="life", row=lambda shown: _with_texts(shown, pages))
        self.offers = offers(record=record, entries=entries, standing=self.standing, user=user, role=role, sent=sent)
        self.link = record.public_links.filter(ended_at=None).first()
        """The public page, while it has one."""
        self.gate = gate_of(record, self.standing)
        """What the project's policy gives of the record now; None without a policy."""
        self.may_publish = reaches(role, Role.OPERATOR)

    @property
    def public_address(self) -> str:
        """With the platform's own address before it; empty without a public page."""
        if self.link is None:
            return ""
        return environment().public_url.rstrip("/") + reverse("public_card", args=[self.link.token])


def entries_of(record_ids: Iterable[int]) -> QuerySet[RecordEntry]:
    """In the order in which they were written, with who wrote them."""
    return RecordEntry.objects.filter(record__in=list(record_ids)).select_related("by").order_by("pk")


def standings(record_ids: Iterable[int]) -> dict[int, Standing]:
    """The sign-off status of each of these records, in one query."""
    pks = list(record_ids)
    by_record: dict[int, list[RecordEntry]] = {pk: [] for pk in pks}
    for entry in entries_of(pks).filter(kind__in=[EntryKind.SIGN_OFF, EntryKind.REVOKED]):
        by_record[entry.record_id].append(entry)
    return {pk: standing_of(entries) for pk, entries in by_record.items()}
