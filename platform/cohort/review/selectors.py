"""Reads of sampled groups that records and pages share."""

from django.db.models import QuerySet

from cohort.review.models import Group, Sample
from cohort.runs.models import Run
from cohort.runs.standing import standing


def right(sample: Sample, success: str) -> bool | None:
    """By the component that decides; None when the sample was masked or the component cannot say."""
    if sample.mask_cause:
        return None
    component = sample.components.get(success)
    passed = component.get("passed") if component else None
    return None if passed is None else bool(passed)


def current_groups(run: Run) -> QuerySet[Group]:
    """Groups in order: those that no later attempt took the place of."""
    return standing(Group.objects.filter(run=run)).order_by("step", "index")
