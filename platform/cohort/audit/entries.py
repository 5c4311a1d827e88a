"""One entry of the log: checked, made canonical, added in the caller's own transaction; and when there are too many.

Adding takes no lock and gives no index, so that it can neither wait for nor hold up anything else; an entry of a change
that is rolled back goes with it. `services.integrate` numbers what was committed.
"""

import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models.functions import Now

from cohort.audit.models import AuditEntry
from cohort.evidence.canonical import CanonicalError, canonical

MOST, WITHIN = 100, timedelta(minutes=10)
"""At most so many entries of one kind in this time; then one entry notes that more were left out."""


def many(most: int, *, kind: str, **of: str) -> bool:
    """Whether so many entries of the kind, with these columns, were added recently."""
    nth = AuditEntry.objects.filter(kind=kind, **of).order_by("-id").values("pk")[most - 1 : most]
    return AuditEntry.objects.filter(pk__in=nth, at__gt=Now() - WITHIN).exists()


MAX_REASON_CHARS = 10_000
MAX_BODY_BYTES = 256 * 1024

_ACTOR = re.compile(r"(user|node):[^\x00-\x1f\x7f]{1,150}|trainer|platform|anonymous")
_KIND = re.compile(r"[a-z][a-z0-9_]{1,59}")
_SUBJECT = re.compile(r"[a-z_]+:[^\x00-\x1f\x7f]{1,180}")


class HasSlug(Protocol):
    """A project, whose model lies above this folder."""

    slug: str


class NotLoggable(ValidationError):
    """What is to be logged is too long, or is not canonical JSON. Nothing is changed without its entry."""


def who(actor: AbstractUser | None) -> str:
    """The actor's name in the log; None stands for commands run on the server."""
    return f"user:{actor.username}" if actor is not None else "platform"


def log(
    *,
    actor: str,
    kind: str,
    subject: str,
    project: HasSlug | None = None,
    before: Any = None,
    after: Any = None,
    reason: str = "",
    data: dict[str, Any] | None = None,
) -> AuditEntry:
    """Add an entry, in the caller's transaction: it is there when the change is, and not otherwise.

    `actor` is user:<name>, node:<name>, trainer, platform or anonymous; `kind` a verb in the past tense such as
    member_added; `subject` what it was done to, as run:12; `before`, `after` and `data` JSON values.

    Raises NotLoggable for a reason of more than 10,000 characters, an entry of more than 256 KiB, and values that
    canonical JSON cannot carry (NaN, whole numbers beyond 2^53 − 1, half a surrogate pair).
    """
    for name, text, form in (("actor", actor, _ACTOR), ("kind", kind, _KIND), ("subject", subject, _SUBJECT)):
        if not form.fullmatch(text):
            raise NotLoggable(f"{text[:200]!a} cannot be the {name} of an entry of the audit log.")
    reason_checked(reason)
    at = clock()
    slug = project.slug if project is not None else None
    content = {
        "at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "actor": actor,
        "kind": kind,
        "subject": subject,
        "project": slug,
        "before": before,
        "after": after,
        "reason": reason,
        "data": data,
        "nonce": secrets.token_hex(16),  # so that nobody can guess an entry from its hash in the public tree
    }
    try:
        body = canonical(content)
    except CanonicalError as error:
        raise NotLoggable(f"The audit log cannot hold this: {error}.") from None
    if len(body) > MAX_BODY_BYTES:
        raise NotLoggable(
            f"What would be logged of this takes {len(body):,} bytes; the audit log takes {MAX_BODY_BYTES:,} an entry. "
            "Shorten what you gave."
        )
    return AuditEntry.objects.create(at=at, actor=actor, kind=kind, subject=subject, project=slug or "", body=body)


def reason_checked(reason: str) -> str:
    """Raises NotLoggable for one that is too long."""
    if len(reason) > MAX_REASON_CHARS:
        raise NotLoggable(
            f"The reason is {len(reason):,} characters long; {MAX_REASON_CHARS:,} at most are taken. Shorten it."
        )
    return reason


def fitted(text: str, rest: str) -> str:
    """The text, cut to the length of a reason; a cut text ends with a note of it and says where the `rest` is."""
    if len(text) <= MAX_REASON_CHARS:
        return text
    suffix = f" … ({len(text):,} characters; {rest})"
    return text[: MAX_REASON_CHARS - len(suffix)] + suffix


def clock() -> datetime:
    """The current time by the database's clock, not the start of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)
