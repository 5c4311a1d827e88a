"""What a project may use at most: runs on workers at once, GPU-hours in 30 days, runs in the queue.

The first two are checked when a run is claimed; a run that is on a worker is never stopped for them. Times are the
database's. The third is checked when a person queues a run, not when the platform queues one again.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Q

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import PROJECT_QUOTAS, lock_person, lock_project, over_person, over_project
from cohort.audit import services as audit
from cohort.runs.models import Attempt, AttemptState, Run, RunState
from grpo_core.errors import ConfigError, FieldProblem

log = logging.getLogger(__name__)

WINDOW = timedelta(days=30)
_HOURS = """
    SELECT run.project_id,
           SUM(GREATEST(1, attempt.gpus) / 3600.0
               * EXTRACT(EPOCH FROM COALESCE(attempt.ended_at, clock.now) - GREATEST(attempt.claimed_at, clock.since)))
    FROM runs_attempt AS attempt
    JOIN runs_run AS run ON run.id = attempt.run_id
    CROSS JOIN (
        SELECT STATEMENT_TIMESTAMP() AS now, STATEMENT_TIMESTAMP() - make_interval(days => %(days)s) AS since
    ) AS clock
    WHERE run.project_id = ANY(%(projects)s) AND (attempt.ended_at IS NULL OR attempt.ended_at > clock.since)
    GROUP BY run.project_id
"""


@dataclass(frozen=True)
class Use:
    """What a project uses and may use."""

    running: int
    """Attempts on workers now."""
    max_running: int | None
    gpu_hours: float
    """In the last 30 days; a run without a GPU counts as one."""
    gpu_hours_limit: int | None

    @property
    def no_place(self) -> bool:
        return self.max_running is not None and self.running >= self.max_running

    @property
    def no_hours(self) -> bool:
        return self.gpu_hours_limit is not None and self.gpu_hours >= self.gpu_hours_limit


def uses(projects: Collection[Project]) -> dict[int, Use]:
    """By project id. Two queries, however many projects."""
    ids = [project.pk for project in projects]
    with connection.cursor() as cursor:
        cursor.execute(_HOURS, {"days": WINDOW.days, "projects": ids})
        hours = {project_id: float(used) for project_id, used in cursor.fetchall()}
    attempts = Attempt.objects.filter(state=AttemptState.RUNNING, run__project__in=ids)
    running = Counter(attempts.values_list("run__project_id", flat=True))
    return {
        project.pk: Use(running[project.pk], project.max_running, hours.get(project.pk, 0.0), project.gpu_hours_limit)
        for project in projects
    }


def project_use(project: Project) -> Use:
    return uses([project])[project.pk]


def hours_free_at(project: Project, *, now: datetime) -> datetime | None:
    """When the last 30 days hold no more than the limit again, if nothing more is used; None without a limit."""
    if project.gpu_hours_limit is None:
        return None
    counted = Q(ended_at=None) | Q(ended_at__gt=now - WINDOW)
    attempts = Attempt.objects.filter(counted, run__project=project).values_list("gpus", "claimed_at", "ended_at")
    spans = ((max(1, gpus), claimed_at, ended_at or now) for gpus, claimed_at, ended_at in attempts)
    return falls_below(spans, project.gpu_hours_limit, now=now)


def falls_below(spans: Iterable[tuple[int, datetime, datetime]], limit: float, *, now: datetime) -> datetime:
    """The first time from `now` on at which (weight, begin, end) `spans` weigh at most `limit` hours in the 30 days
    before it. As those days move on they lose hours at the weight of the spans that leave them."""
    start, excess = now - WINDOW, -limit * 3600
    changes: dict[datetime, int] = defaultdict(int)  # of the weight at which hours leave, by time
    for weight, begin, end in spans:
        if end > start:
            excess += weight * (end - max(begin, start)).total_seconds()
            changes[max(begin, start)] += weight
            changes[end] -= weight
    leaving = 0
    for edge in sorted(changes):
        if excess <= 0:
            break
        left = leaving * (edge - start).total_seconds()
        if left >= excess:
            return start + timedelta(seconds=excess / leaving) + WINDOW
        excess, start, leaving = excess - left, edge, leaving + changes[edge]
    return start + WINDOW


def queue_full(run: Run) -> str:
    """Why the run cannot be queued besides those that wait; empty when it can. Needs a transaction, until whose end
    others who queue a run of its project, or made by its person, wait."""
    project, person = lock_project(run.project), lock_person(run.created_by)
    waiting = Run.objects.filter(state=RunState.QUEUED)
    of_project, of_person = waiting.filter(project=project).count(), waiting.filter(created_by=person).count()
    return over_project(project, "max_waiting_runs", used=of_project) or over_person(
        person, "max_person_waiting_runs", "runs that wait in the queue", used=of_person
    )


@transaction.atomic
def project_quotas_set(*, project: Project, actor: User, quotas: Mapping[str, int | None]) -> None:
    """Set quotas of PROJECT_QUOTAS for this project; None is what the server's settings say. What is there already
    stays, however much it is. Raises ConfigError whose problems name the quota."""
    after = {name: quotas[name] for name in PROJECT_QUOTAS if name in quotas}
    _set(project, actor, after, "project_quotas_changed", empty="the server's own")


@transaction.atomic
def project_limits_set(*, project: Project, actor: User, max_running: int | None, gpu_hours: int | None) -> None:
    """Set both limits; None is no limit. Raises ConfigError whose problems name `max_running` and `gpu_hours_limit`."""
    after = {"max_running": max_running, "gpu_hours_limit": gpu_hours}
    _set(project, actor, after, "project_limits_changed", empty="no limit")


def _set(project: Project, actor: User, after: Mapping[str, int | None], kind: str, *, empty: str) -> None:
    faults = [
        FieldProblem(name, f"is 1 or more, or empty for {empty}; not {value}")
        for name, value in after.items()
        if value is not None and value < 1
    ]
    if faults:
        raise ConfigError(f"these limits cannot be: {'; '.join(map(str, faults))}", tuple(faults))
    project.refresh_from_db(from_queryset=Project.objects.select_for_update(no_key=True))
    before = {name: getattr(project, name) for name in after}
    if before == after:
        return
    for name, value in after.items():
        setattr(project, name, value)
    project.save(update_fields=list(after))
    audit.log(
        actor=audit.who(actor),
        kind=kind,
        subject=f"project:{project.slug}",
        project=project,
        before=before,
        after=after,
    )
    log.info("limits of %r set by %r: %s", project.slug, actor.username, after)
