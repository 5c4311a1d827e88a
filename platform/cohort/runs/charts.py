"""A project's own charts: which metrics are drawn together on the page of each of its runs."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.runs.models import ProjectChart

MOST_CHARTS = 40
"""Of a project: each is drawn on every page of a run."""
MOST_LINES = 8
LONGEST_NAME = 200
"""Of a metric, in characters."""


def project_charts(project: Project) -> QuerySet[ProjectChart]:
    """In the order in which they were added."""
    return ProjectChart.objects.filter(project=project).order_by("pk")


@transaction.atomic
def chart_create(
    *, project: Project, actor: User, title: str, metrics: Sequence[str], log: bool = False
) -> ProjectChart:
    """Raises ValidationError by field: for a title that is empty, too long or taken, for no metric or too many, and
    when the project has as many charts as it may."""
    project = lock_project(project)
    fields = _checked(ProjectChart(project=project), title=title, metrics=metrics, log=log)
    if ProjectChart.objects.filter(project=project).count() >= MOST_CHARTS:
        raise ValidationError(
            f"{project.name} has {MOST_CHARTS} charts of its own, which is the most. Remove one first."
        )
    chart = ProjectChart.objects.create(project=project, created_by=actor, **fields)
    _logged(chart, actor, "chart_created", after=fields)
    return chart


@transaction.atomic
def chart_change(*, chart: ProjectChart, actor: User, title: str, metrics: Sequence[str], log: bool = False) -> None:
    """Raises ValidationError as `chart_create` does."""
    lock_project(chart.project)
    before = {name: getattr(chart, name) for name in ("title", "metrics", "log")}
    after = _checked(chart, title=title, metrics=metrics, log=log)
    if before == after:
        return
    for name, value in after.items():
        setattr(chart, name, value)
    chart.save(update_fields=[*after])
    _logged(chart, actor, "chart_changed", before=before, after=after)


@transaction.atomic
def chart_remove(*, chart: ProjectChart, actor: User) -> None:
    """No run loses a number by it."""
    _logged(chart, actor, "chart_removed", before={"title": chart.title, "metrics": chart.metrics, "log": chart.log})
    chart.delete()


def _checked(chart: ProjectChart, *, title: str, metrics: Sequence[str], log: bool) -> dict[str, Any]:
    title, names = storable(title).strip(), list(dict.fromkeys(metrics))
    faults: dict[str, str] = {}
    others = ProjectChart.objects.filter(project=chart.project).exclude(pk=chart.pk)
    if not title:
        faults["title"] = "A chart needs a title."
    elif len(title) > 80:
        faults["title"] = f"At most 80 characters; these are {len(title)}."
    elif others.filter(title=title).exists():
        faults["title"] = "The project has a chart with this title. Choose another, or edit that one."
    if not names:
        faults["metrics"] = "Choose at least one metric."
    elif len(names) > MOST_LINES:
        faults["metrics"] = f"At most {MOST_LINES} metrics fit one chart; these are {len(names)}."
    elif any(not name or len(name) > LONGEST_NAME or name != storable(name) for name in names):
        faults["metrics"] = "One of these is no metric’s name."
    if faults:
        raise ValidationError(faults)
    return {"title": title, "metrics": names, "log": log}


def _logged(chart: ProjectChart, actor: User, kind: str, **entry: Any) -> None:
    audit.log(actor=audit.who(actor), kind=kind, subject=f"chart:{chart.pk}", project=chart.project, **entry)
