"""The address at which anyone reads the public part of a record: made, withdrawn, and looked up.

The token is the only key: 256 random bits. The audit log does not hold it.
"""

import re
import secrets

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.records.models import PublicLink, Record

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@transaction.atomic
def public_link_make(*, record: Record, actor: User) -> PublicLink:
    """Raises ValidationError while the record has one."""
    Record.objects.select_for_update(no_key=True).only("pk").get(pk=record.pk)
    if record.public_links.filter(ended_at=None).exists():
        raise ValidationError("This record has a public page already. Withdraw it first to get another address.")
    link = PublicLink.objects.create(record=record, token=secrets.token_urlsafe(32), by=actor)
    _log(link, actor, "public_link_made")
    return link


@transaction.atomic
def public_link_end(*, record: Record, actor: User) -> None:
    """Every address of the record's public page answers 404 from now on. Raises ValidationError when it has none."""
    ended = list(record.public_links.select_for_update().filter(ended_at=None))
    if not ended:
        raise ValidationError("This record has no public page; it was withdrawn before.")
    for link in ended:
        link.ended_at = timezone.now()
        link.save(update_fields=["ended_at"])
        _log(link, actor, "public_link_ended")


def public_record(token: str) -> Record | None:
    """The record that this token opens; None for a wrong or ended token."""
    if not _TOKEN.fullmatch(token):
        return None
    link = (
        PublicLink.objects.filter(token=token, ended_at=None)
        .select_related("record__run__project", "record__superseded_by")
        .first()
    )
    return link.record if link is not None else None


def _log(link: PublicLink, actor: User, kind: str) -> None:
    audit.log(
        actor=audit.who(actor),
        kind=kind,
        subject=f"record:{link.record_id}",
        project=link.record.run.project,
        data={"link": link.pk, "run": link.record.run_id, "seal": link.record.seal},
    )
