"""All that a record's page and its life's page show of what came after the seal, in one object and few queries."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import QueryDict
from django.urls import reverse

from cohort.accounts.models import Membership, Role, User, reaches
from cohort.base.environment import environment
from cohort.records.after_seal.rules import Standing, standing_of
from cohort.records.models import EntryKind, PublicLink, Record, RecordEntry
from cohort.web.after_seal.offers import Offer, offers
from cohort.web.after_seal.timeline import Item, timeline


@dataclass(frozen=True)
class Life:
    record: Record
    standing: Standing
    items: list[Item]
    """Newest first."""
    offers: list[Offer]
    link: PublicLink | None
    """The public page, while it has one."""
    may_publish: bool

    @property
    def public_address(self) -> str:
        """With the platform's own address before it; empty without a public page."""
        if self.link is None:
            return ""
        return environment().public_url.rstrip("/") + reverse("public_card", args=[self.link.token])


def life_of(record: Record, *, user: User, sent: tuple[str, QueryDict] | None = None) -> Life:
    """For this member of the record's project. `sent`: an action and what was typed for it, to be shown again."""
    entries = list(entries_of([record.pk]))
    standing = standing_of(entries)
    member = Membership.objects.get(project=record.run.project_id, user=user)
    return Life(
        record=record,
        standing=standing,
        items=timeline(record, entries),
        offers=offers(record=record, entries=entries, standing=standing, user=user, role=member.role, sent=sent),
        link=record.public_links.filter(ended_at=None).first(),
        may_publish=reaches(member.role, Role.OPERATOR),
    )


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
