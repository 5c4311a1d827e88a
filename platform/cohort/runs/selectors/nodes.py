"""Which machines are here: the one rule that the sidebar, the form, a waiting run and the page of nodes share."""

from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from cohort.runs.models import Node

SILENT_AFTER = timedelta(seconds=settings.COHORT_LEASE_SECONDS)
"""A worker says every 20 s that it is here, busy or not; one not heard from for this long is gone."""


def nodes_here() -> QuerySet[Node]:
    """Not revoked, and heard from lately by the database's clock."""
    return Node.objects.filter(revoked_at=None, last_seen_at__gt=Now() - SILENT_AFTER)
