"""How much a project uses, and when it uses less: worked out by hand."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.runs.limits import falls_below, gpu_hours_used, hours_free_at, project_limits_set, project_use
from cohort.runs.models import Attempt
from grpo_core.errors import ConfigError
from tests.factories.runs import Maker
from tests.web.control import fresh

HOUR = timedelta(hours=1)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAYS_30 = timedelta(days=30)


def spent(
    maker: Maker, *, gpus: int, began_ago: timedelta, ended_ago: timedelta | None, now: datetime | None = None
) -> Attempt:
    run = maker.run(state="training")
    attempt = maker.attempt(run, state="running" if ended_ago is None else "finished")
    at = now or Now()
    Attempt.objects.filter(pk=attempt.pk).update(
        gpus=gpus, claimed_at=at - began_ago, ended_at=None if ended_ago is None else at - ended_ago
    )
    return attempt


@pytest.mark.django_db
def test_gpu_hours_are_those_of_thirty_days(maker: Maker, ours: Project) -> None:
    """Asked a little later, what goes on has used as much more as became too old: 7 GPUs each."""
    assert gpu_hours_used(ours) == 0
    now = timezone.now()
    spent(maker, gpus=4, began_ago=3 * HOUR, ended_ago=HOUR, now=now)  # 8
    spent(maker, gpus=0, began_ago=5 * HOUR, ended_ago=2 * HOUR, now=now)  # 3: without a GPU it counts as one
    spent(maker, gpus=7, began_ago=HOUR, ended_ago=None, now=now)  # 7, and goes on
    spent(maker, gpus=7, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 - 2 * HOUR, now=now)  # 14: the rest is too old
    spent(maker, gpus=8, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 + HOUR, now=now)  # 0
    assert gpu_hours_used(ours) == pytest.approx(32, abs=0.001)
    assert project_use(ours).running == 1


def test_a_limit_is_met_again_when_old_hours_leave_the_thirty_days() -> None:
    """2 GPUs for 10 hours, 29 days ago, and 1 GPU for 5 hours yesterday: 25 hours. A limit of 15 is met when 5 of the
    10 hours have left: 30 days after the fifth hour began."""
    old, late = NOW - timedelta(days=29), NOW - timedelta(days=1)
    spans = [(2, old, old + 10 * HOUR), (1, late, late + 5 * HOUR)]
    assert falls_below(spans, 15, now=NOW) == old + 5 * HOUR + DAYS_30
    assert falls_below(spans, 5, now=NOW) == old + 10 * HOUR + DAYS_30
    assert falls_below(spans, 2, now=NOW) == late + 3 * HOUR + DAYS_30
    assert falls_below(spans, 25, now=NOW) == NOW


def test_hours_that_leave_together_leave_faster() -> None:
    """Two spans of weight 1 and 3 side by side for 4 hours: 16. Half is gone after 2 hours."""
    old = NOW - timedelta(days=20)
    spans = [(1, old, old + 4 * HOUR), (3, old, old + 4 * HOUR)]
    assert falls_below(spans, 8, now=NOW) == old + 2 * HOUR + DAYS_30


def test_a_span_that_is_leaving_already_counts_with_what_is_left() -> None:
    """10 hours that began 30 days and 4 hours ago: 6 are left, and 5 in an hour."""
    began = NOW - DAYS_30 - 4 * HOUR
    assert falls_below([(1, began, began + 10 * HOUR)], 5, now=NOW) == NOW + HOUR


@pytest.mark.django_db
def test_what_ended_before_the_thirty_days_is_not_read(maker: Maker, ours: Project) -> None:
    for _ in range(3):
        spent(maker, gpus=8, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 + HOUR)
    spent(maker, gpus=2, began_ago=20 * HOUR, ended_ago=10 * HOUR)
    spent(maker, gpus=1, began_ago=2 * HOUR, ended_ago=None)
    ours.gpu_hours_limit = 12
    now = timezone.now()
    with CaptureQueriesContext(connection) as asked:
        free_at = hours_free_at(ours, now=now)
    assert free_at is not None
    # 22 are used, and 10 of them leave with the first 5 hours of the two GPUs
    assert abs(free_at - (now + DAYS_30 - 15 * HOUR)) < timedelta(minutes=1)
    with connection.cursor() as cursor:
        cursor.execute(asked[0]["sql"])
        assert (len(asked), len(cursor.fetchall())) == (1, 2)


@pytest.mark.django_db
def test_limits_are_set_and_refused_by_name(ours: Project, alice: User) -> None:
    project_limits_set(project=ours, actor=alice, max_running=3, gpu_hours=100)
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (3, 100)
    with pytest.raises(ConfigError) as refused:
        project_limits_set(project=ours, actor=alice, max_running=0, gpu_hours=-1)
    assert [problem.path for problem in refused.value.problems] == ["max_running", "gpu_hours_limit"]
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (3, 100)
    project_limits_set(project=ours, actor=alice, max_running=None, gpu_hours=None)
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (None, None)
