"""How long a project keeps the texts of its samples: their deletion when that time is over.

Off unless an admin sets it. Counted from the end of the run; a run that continues keeps its texts.
"""

from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.records.traces.redaction import samples_redact
from cohort.review.models import Sample
from cohort.runs.models import Run
from cohort.runs.transitions import ENDED

AT_ONCE = 5_000
"""Samples deleted in one transaction."""
LONGEST_DAYS = 36_500


@transaction.atomic
def retention_set(*, project: Project, actor: User, days: int | None) -> None:
    """Keep the texts of samples so many days after the end of their run; None keeps them. Raises ValidationError."""
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise ValidationError({"days": f"Give 1 to {LONGEST_DAYS:,} days, or leave it empty to keep all texts."})
    locked = Project.objects.select_for_update().get(pk=project.pk)
    before, project.traces_keep_days = locked.traces_keep_days, days
    project.save(update_fields=["traces_keep_days"])
    audit.log(
        actor=f"user:{actor.username}",
        kind="retention_set",
        subject=f"project:{project.slug}",
        project=project,
        before={"traces_keep_days": before},
        after={"traces_keep_days": days},
    )


def traces_expire() -> int:
    """Delete every text whose time is over. Returns how many samples. May run twice, and continues where it was cut
    off. The caller of `runs_to_renew` issues the cards again."""
    total = 0
    for project in Project.objects.exclude(traces_keep_days=None):
        days = project.traces_keep_days
        reason = f"Kept for {days} days after the run's end, as the project has set."
        old = Run.objects.filter(project=project, state__in=ENDED, ended_at__lt=Now() - timedelta(days=days or 0))
        texts = Sample.objects.filter(group__run=OuterRef("pk"), redacted_at=None)
        for run in old.filter(Exists(texts)):
            # A large run takes a while, and somebody may let it continue meanwhile.
            while old.filter(pk=run.pk).exists():
                batch = list(Sample.objects.filter(group__run=run, redacted_at=None).order_by("pk")[:AT_ONCE])
                if not batch:
                    break
                total += samples_redact(run=run, samples=batch, actor=None, reason=reason)
    return total
