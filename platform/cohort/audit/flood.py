"""What strangers can do as often as they like: entered one by one up to a bound, then once for all of it."""

from datetime import timedelta

from django.db.models.functions import Now

from cohort.audit.models import AuditEntry

MOST, WITHIN = 100, timedelta(minutes=10)
"""So many entries of a thing in such a time; then one entry says that there are more."""


def many(most: int, *, kind: str, **of: str) -> bool:
    """Whether there were so many entries of the kind of late, with these columns."""
    nth = AuditEntry.objects.filter(kind=kind, **of).order_by("-id").values("pk")[most - 1 : most]
    return AuditEntry.objects.filter(pk__in=nth, at__gt=Now() - WITHIN).exists()
