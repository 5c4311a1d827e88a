"""What people do with alerts: acknowledge and close them. And closing those of runs that were archived."""

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.alerts.models import Alert, Condition
from cohort.audit import services as audit
from cohort.base.storable import storable

NOTE_CHARACTERS = 2000
MOST_AT_ONCE = 200
"""Alerts that one action takes."""


@transaction.atomic
def alerts_acknowledge(*, alerts: Iterable[Alert], actor: User, note: str = "") -> int:
    """Those that are open leave the desk; the same cause of the same run opens no other until they are closed. Returns
    how many it were. Raises ValidationError for a note that is too long."""
    note = _note(note)
    rows = _locked(alerts).filter(acknowledged_at=None, closed_at=None)
    done = list(rows)
    for alert in done:
        Alert.objects.filter(pk=alert.pk).update(acknowledged_at=Now(), acknowledged_by=actor, note=note or alert.note)
        _logged(alert, actor, "alert_acknowledged", note)
    return len(done)


@transaction.atomic
def alerts_close(*, alerts: Iterable[Alert], actor: User, note: str = "") -> int:
    """What they report is over: when it comes again it opens another. Of a search, once the run has not matched in
    between. Returns how many it were. Raises ValidationError for a note that is too long."""
    note = _note(note)
    done = list(_locked(alerts).filter(closed_at=None))
    for alert in done:
        holds = alert.holds and alert.condition == Condition.SEARCH
        fields = {"closed_at": Now(), "closed_by": actor, "holds": holds, "note": note or alert.note}
        Alert.objects.filter(pk=alert.pk).update(**fields)
        _logged(alert, actor, "alert_closed", note)
    return len(done)


def archived_close() -> int:
    """Close the alerts of runs that were archived. Returns how many it were."""
    rows = Alert.objects.filter(closed_at=None, run__archived_at__isnull=False)
    return rows.update(closed_at=Now(), closed_why="its run was archived", holds=False)


def _locked(alerts: Iterable[Alert]) -> QuerySet[Alert]:
    rows = Alert.objects.select_for_update(of=("self",)).select_related("project")
    return rows.filter(pk__in=[alert.pk for alert in alerts]).order_by("pk")


def _note(text: str) -> str:
    note = storable(text.replace("\r\n", "\n").strip())
    if len(note) > NOTE_CHARACTERS:
        raise ValidationError(f"A note has at most {NOTE_CHARACTERS:,} characters; this one has {len(note):,}.")
    return note


def _logged(alert: Alert, actor: User, kind: str, note: str) -> None:
    after = {"run": alert.run_id, "title": alert.title}
    audit.log(
        actor=audit.who(actor), kind=kind, subject=f"alert:{alert.pk}", project=alert.project, after=after, reason=note
    )
