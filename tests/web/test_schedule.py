"""Whose turn it is: between projects and inside one, by label, GPUs and limits, and where a run's checkpoints are; how
much a project uses, worked out by hand; and what the page of the queue says of it.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import cohort
from cohort.accounts.models import Project
from cohort.nodes.leases import NotWaiting, OtherVersion
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.runs.limits import falls_below, hours_free_at, project_use
from cohort.runs.models import Attempt, Checkpoint, Run
from cohort.runs.schedule import node_capacities, queue, takeable
from cohort.runs.waiting import waiting_rows
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web import control
from tests.web.control import (
    beat,
    checkpoint,
    claim,
    database_now,
    do,
    finish,
    fresh,
    let_pass,
    node,
    poll_of,
    waiting,
    why,
)
from tests.web.pages import html
from tests.web.run_page import queries, words

pytestmark = pytest.mark.django_db


def ago(minutes: float) -> Any:
    return Now() - timedelta(minutes=minutes)


class Scene:
    """Nodes and waiting runs by name. Each method is a step of the scenarios in tests/cases/runs/schedule.yaml; of two
    that make a row, the second changes it."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.runs: dict[str, Run] = {}

    def node(self, name: str, *, seen: float = 0, info: dict[str, Any] | None = None, **fields: Any) -> None:
        if not Node.objects.filter(name=name).exists():
            node(name)
        reported = {} if info is None else {"info": control.info(**info).model_dump(mode="json")}
        Node.objects.filter(name=name).update(last_seen_at=ago(seen), **reported, **fields)

    def run(self, name: str, *, waits: float = 0, project: str = "", **fields: Any) -> None:
        run = self.runs.setdefault(name, self.runs.get(name) or waiting(self.maker))
        if project:
            fields["project"] = Project.objects.get(slug=project)
        Run.objects.filter(pk=run.pk).update(queued_at=ago(waits), **fields)

    def project(self, **limits: int) -> None:
        Project.objects.filter(slug="ours").update(**limits)

    def claim(self, node: str, *, hint: str = "", gets: str = "", refused: str = "") -> None:
        """What the node has is another worker's on the same machine, for a worker has one run at a time."""
        on, pk = Node.objects.get(name=node), self.runs[hint or gets].pk
        if Attempt.objects.filter(node=on, state="running").exists():
            elsewhere = node_create(name=f"{node}-{Node.objects.count()}")[0]
            Attempt.objects.filter(node=on, state="running").update(node=elsewhere)
        if gets:
            assert claim(on, pk).run_id == self.runs[gets].pk
        else:
            with pytest.raises((NotWaiting, OtherVersion), match=re.escape(refused)):
                claim(on, pk)

    def attempt(self, run: str, **times: float) -> None:
        Attempt.objects.filter(run=self.runs[run]).update(**{field: ago(minutes) for field, minutes in times.items()})

    def trains(
        self, run: str, *, first: int, last: int, checkpoints: Sequence[int], resumed: int | None = None
    ) -> None:
        steps = [*control.steps(first, last), *(checkpoint(step) for step in checkpoints)]
        attempt = Attempt.objects.select_related("run").filter(run=self.runs[run]).latest("fence")
        control.train(attempt, *([control.resumed(resumed)] if resumed else []), *steps)

    def end(self, run: str, *, end: str = "cancelled") -> None:
        finish(Attempt.objects.filter(run=self.runs[run]).latest("fence"), end, "worker_shutdown")

    def came_back(self, run: str) -> None:
        """gpu-1 had to give the run back with checkpoints at steps 2 and 4."""
        self.node("gpu-1")
        self.run(run)
        self.claim("gpu-1", gets=run)
        self.trains(run, first=1, last=4, checkpoints=[2, 4])
        self.end(run, end="preempted")

    def stored(self, step: int) -> None:
        """That checkpoint is on the platform."""
        Checkpoint.objects.filter(step=step).update(stored_at=Now())

    def reads(self, **page: Any) -> None:
        names = {run.pk: name for name, run in self.runs.items()}
        by_name = {names[row.run.pk]: row for row in waiting_rows()}
        assert [row.position for row in by_name.values()] == [*range(1, len(by_name) + 1)]
        if "order" in page:
            assert list(by_name) == page["order"]
        if "takeable" in page:
            assert [names[run.pk] for run in takeable(queue(), node_capacities())] == page["takeable"]
        for name, needs in page.get("needs", {}).items():
            assert by_name[name].needs == needs
        for name, reason in page.get("reasons", {}).items():
            why = re.sub(r"\d\d:\d\d:\d\d", "{time}", by_name[name].why)
            assert why == reason.replace("{version}", cohort.__version__)


@pytest.mark.parametrize("steps", cases("runs/schedule", "steps"))
def test_whose_turn_it_is(maker: Maker, steps: list[dict[str, Any]]) -> None:
    scene = Scene(maker)
    for step in steps:
        getattr(scene, step["do"])(**{name: value for name, value in step.items() if name != "do"})


def test_the_row_of_one_run_is_that_among_all(maker: Maker, gpu1: Node) -> None:
    first, mine = waiting(maker, 9), waiting(maker, 1)
    waiting(maker, 0)
    (row,) = waiting_rows(only=mine)
    assert (row.run.pk, row.position, row.since) == (mine.pk, 2, mine.queued_at)
    assert row.why == why(mine) == "behind 1 other run"
    claim(gpu1, first.pk)
    assert waiting_rows(only=Run.objects.get(pk=first.pk)) == [], "it no longer waits"


@pytest.mark.parametrize(
    ("engine", "gpus", "held"),
    [
        ({}, 0, 0),
        ({}, 4, 1),
        ({"device": "cpu"}, 4, 0),
        ({"device": "cuda", "devices": 4}, 4, 4),
        ({"device": "cuda", "devices": 4, "nodes": 2}, 4, 8),
    ],
)
def test_an_attempt_holds_the_gpus_that_it_uses(maker: Maker, engine: dict[str, object], gpus: int, held: int) -> None:
    maker.run(state="queued", engine=engine)
    assert claim(node("gpu-9", gpus=gpus)).gpus == held


def test_a_draining_node_gives_back_what_it_has(maker: Maker, gpu1: Node) -> None:
    attempt = claim(gpu1, waiting(maker).pk)
    for how, desired in (("finish", "run"), ("move", "preempt")):
        Node.objects.update(draining=how)
        assert beat(attempt)[0] == desired
    Run.objects.update(desired="cancel")
    assert beat(attempt)[0] == "cancel", "a person's word counts for more"


def test_a_hint_of_no_run_is_an_error_only_when_nothing_waits(maker: Maker, gpu1: Node) -> None:
    with pytest.raises(Run.DoesNotExist):
        claim(gpu1, 10**6)
    run = waiting(maker)
    assert claim(gpu1, 10**6).run_id == run.pk


def test_a_project_that_used_its_hours_waits_until_old_ones_no_longer_count(maker: Maker, gpu1: Node) -> None:
    """120 hours, 20 days ago, of 100: free when 20 of them are 30 days old, in 10 days and 20 hours less 120 ago."""
    Project.objects.filter(slug="ours").update(gpu_hours_limit=100)
    finish(claim(gpu1, waiting(maker).pk), "cancelled")
    Attempt.objects.update(ended_at=Now() - timedelta(days=20), claimed_at=Now() - timedelta(days=20, hours=120))
    run = waiting(maker)
    free = Attempt.objects.get().claimed_at + timedelta(days=30, hours=20)
    frees = f"frees at {free:%Y-%m-%d %H:%M} UTC if nothing more is used"
    assert why(run) == f"the project's GPU-hours are used up (120 of 100 in 30 days; {frees})"
    with pytest.raises(NotWaiting, match="GPU-hours are used up"):
        claim(gpu1, run.pk)
    short = queries(lambda: waiting_rows())
    for _ in range(9):
        waiting(maker)
    with CaptureQueriesContext(connection) as long:
        assert {row.why for row in waiting_rows()} == {why(run)}
    single = queries(lambda: waiting_rows(only=run))
    assert short == single <= 8, "the queue, the nodes, and when the hours are free"
    assert len(long) == 2 * short, "of which two pages were read"
    Project.objects.filter(slug="ours").update(gpu_hours_limit=121)
    assert claim(gpu1).run_id == run.pk


def test_words_that_name_a_time(maker: Maker, gpu1: Node) -> None:
    """Of a run that is kept for another node, that waits for its next try, and that waits for a node that is away."""
    Scene(maker).came_back("a")
    store, other = Checkpoint.objects.filter(step=2), node("gpu-2")
    store.update(stored_at=Now())
    before, run = database_now(), Run.objects.get()
    with pytest.raises(NotWaiting, match="kept for gpu-1") as kept:
        claim(other, run.pk)
    seconds = re.search(r"for another (\d+) s$", str(kept.value))
    assert seconds is not None
    assert run.queued_at is not None
    most, least = (60 - (moment - run.queued_at).total_seconds() for moment in (before, database_now()))
    assert round(least) <= int(seconds[1]) <= round(most) <= 60
    Run.objects.update(retries=2, not_before=Now() + timedelta(seconds=30))
    assert why(run) == f"waits until {fresh(run).not_before:%H:%M:%S} UTC after a failure (try 2 of 5)"
    with pytest.raises(NotWaiting, match="after a failure"):
        claim(gpu1, run.pk)
    let_pass(run)
    Checkpoint.objects.update(stored_at=None)
    Node.objects.filter(pk=gpu1.pk).update(last_seen_at=ago(14))
    gpu1.refresh_from_db()
    until = gpu1.last_seen_at + timedelta(minutes=15)  # type: ignore[operator]
    assert f"waits until {until:%H:%M:%S} UTC for gpu-1" in why(run)
    assert claim(gpu1).run_id == run.pk


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
    """Asked a little later, what continues has used as much more as became too old: 7 GPUs each."""
    assert project_use(ours).gpu_hours == 0
    now = timezone.now()
    spent(maker, gpus=4, began_ago=3 * HOUR, ended_ago=HOUR, now=now)  # 8
    spent(maker, gpus=0, began_ago=5 * HOUR, ended_ago=2 * HOUR, now=now)  # 3: without a GPU it counts as one
    spent(maker, gpus=7, began_ago=HOUR, ended_ago=None, now=now)  # 7, and continues
    spent(maker, gpus=7, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 - 2 * HOUR, now=now)  # 14: the rest is too old
    spent(maker, gpus=8, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 + HOUR, now=now)  # 0
    assert project_use(ours).gpu_hours == pytest.approx(32, abs=0.001)
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
    old = NOW - timedelta(days=20)  # weights of 1 and 3 side by side for 4 hours leave faster: half after 2 hours
    spans = [(1, old, old + 4 * HOUR), (3, old, old + 4 * HOUR)]
    assert falls_below(spans, 8, now=NOW) == old + 2 * HOUR + DAYS_30
    began = NOW - DAYS_30 - 4 * HOUR  # of 10 hours that are leaving already 6 are left, and 5 in an hour
    assert falls_below([(1, began, began + 10 * HOUR)], 5, now=NOW) == NOW + HOUR


@pytest.mark.django_db
def test_what_ended_before_the_thirty_days_is_not_read(maker: Maker, ours: Project) -> None:
    for _ in range(3):
        spent(maker, gpus=8, began_ago=DAYS_30 + 5 * HOUR, ended_ago=DAYS_30 + HOUR)
    spent(maker, gpus=2, began_ago=20 * HOUR, ended_ago=10 * HOUR)
    spent(maker, gpus=1, began_ago=2 * HOUR, ended_ago=None)
    ours.gpu_hours_limit = 12
    now = timezone.now()
    with CaptureQueriesContext(connection) as captured:
        free_at = hours_free_at(ours, now=now)
    assert free_at is not None
    # 22 are used, and 10 of them leave with the first 5 hours of the two GPUs
    assert abs(free_at - (now + DAYS_30 - 15 * HOUR)) < timedelta(minutes=1)
    with connection.cursor() as cursor:
        cursor.execute(captured[0]["sql"])
        assert (len(captured), len(cursor.fetchall())) == (1, 2)


QUEUE = "/p/ours/queue/"


def test_the_queue_shows_who_waits_for_what(operator: Client, maker: Maker) -> None:
    busy = maker.run("busy", state="training")
    maker.attempt(busy)
    Node.objects.update(last_seen_at=timezone.now())
    plain = maker.run("plain", state="queued")
    labelled = maker.run("labelled", state="queued")
    Run.objects.filter(pk=labelled.pk).update(node_label="a100", priority=10)
    response = operator.get(QUEUE)
    listed = response.context["page"]
    assert [(row.position, row.run.name, row.needs) for row in listed.waiting] == [
        (1, "labelled", "a node with the label a100"),
        (2, "plain", "any node"),
    ]
    assert "node-a" in listed.waiting[1].why
    assert [attempt.run.name for attempt in listed.running] == ["busy"]
    page = html(response)
    for part in ("labelled", "plain", "busy", listed.waiting[0].why, 'id="count-waiting">2<'):
        assert part in page
    do(operator, plain, "priority", priority="-10")
    assert plain.priority == -10
    assert "Nothing was done" in do(operator, plain, "priority", priority="77")
    assert plain.priority == -10


def test_the_queue_polls_and_is_quiet_while_nothing_changes(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="queued")
    address = poll_of(html(viewer.get(QUEUE)))
    assert viewer.get(address).status_code == 204
    Run.objects.filter(pk=run.pk).update(priority=10)
    changed = viewer.get(address)
    assert changed.status_code == 200
    assert "<html" not in html(changed)


def test_runs_of_another_project_have_no_name_here(stranger: Client, maker: Maker) -> None:
    waits, runs = maker.run("secret one", state="queued"), maker.run("secret two", state="training")
    Run.objects.filter(pk=waits.pk).update(node_label="a100")
    maker.attempt(runs)
    page = html(stranger.get("/p/theirs/queue/"))
    for hidden in ("secret", "Our project", "/priority/"):
        assert hidden not in page
    assert page.count("a run of another project") == 2
    assert "a node with the label a100" in page


def test_limits_are_set_by_an_admin_and_seen_by_all(admin: Client, viewer: Client, ours: Project) -> None:
    address = "/p/ours/limits/"
    assert admin.post(address, {"max_running": "3", "gpu_hours_limit": "100"}).url == QUEUE
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (3, 100)
    text = words(html(viewer.get(QUEUE)))
    assert "0 of 3 running" in text
    assert "0.0 of 100 GPU-hours" in text
    assert "Set limits" not in html(viewer.get(address))
    for hours in ("x", "-1"):
        refused = admin.post(address, {"max_running": "0", "gpu_hours_limit": hours})
        assert refused.status_code == 422
        assert set(refused.context["form"].errors) == {"max_running", "gpu_hours_limit"}
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (3, 100)
    admin.post(address, {"max_running": "", "gpu_hours_limit": ""})
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (None, None)
