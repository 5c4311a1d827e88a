"""Reads of alerts, for the desk, the first page, lists of runs and a run's own page."""

from collections.abc import Collection

from django.db.models import Q, QuerySet

from cohort.accounts.models import Project
from cohort.alerts.models import Alert, Condition
from cohort.runs.health import badges_of
from cohort.runs.models import Run
from grpo_core.monitors.table import ALARMS

STATES = {
    "open": Q(closed_at=None, acknowledged_at=None),
    "acknowledged": Q(closed_at=None, acknowledged_at__isnull=False),
    "closed": Q(closed_at__isnull=False),
    "all": Q(),
}
"""What the desk filters by; the first is its default."""
_BADGE = 32
"""Characters of a badge, which is one line on a phone too."""


def alerts_of(project: Project, *, state: str = "open") -> QuerySet[Alert]:
    """Of STATES; the newest first."""
    return Alert.objects.filter(STATES[state], project=project).order_by("-pk")


def open_alerts(run: Run) -> QuerySet[Alert]:
    """Of one run, the newest first."""
    return Alert.objects.filter(STATES["open"], run=run).order_by("-pk")


def badges_with_alerts(runs: Collection[int], *, live: Collection[int]) -> dict[int, list[str]]:
    """By run's id, what is wrong with it, in short, for a list: open alerts, those of alarms first (a list shows
    few), then what the trainers of those in `live` report. Ends are left out: the run's state says so next to it. Two
    queries, or one."""
    badges: dict[int, list[str]] = {run: [] for run in runs}
    rows = Alert.objects.filter(STATES["open"], run__in=runs).exclude(condition=Condition.ENDED)
    newest = list(rows.order_by("-pk").values_list("run_id", "title", "cause"))
    for run, title, _ in sorted(newest, key=lambda row: row[2] not in ALARMS):
        badges[run].append(title)
    for run, causes in (badges_of(live) if live else {}).items():
        badges[run] += causes
    return {run: list(dict.fromkeys(map(_short, titles))) for run, titles in badges.items()}


def _short(title: str) -> str:
    return title if len(title) <= _BADGE else f"{title[: _BADGE - 1]}…"
