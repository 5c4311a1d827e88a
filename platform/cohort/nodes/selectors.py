"""Which machines are here: the one rule that sidebar, form, queue and the pages of nodes share."""

from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from cohort.nodes.models import Node

SILENT_AFTER = timedelta(seconds=max(60, settings.COHORT_LEASE_SECONDS))
"""A worker sends a heartbeat every 20 s, busy or not; one without for this long is gone. A shorter lease does
not shorten it, because an idle worker knows nothing of leases."""


def nodes_here() -> QuerySet[Node]:
    """Not revoked, with a heartbeat lately by the database's clock."""
    return Node.objects.filter(revoked_at=None, last_seen_at__gt=Now() - SILENT_AFTER)
