"""Whose turn it is: between projects and inside one, by label, GPUs and limits, and where a run's checkpoints are; and
what the page of the queue says of it."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

import cohort
from cohort.accounts.models import Project
from cohort.runs.attempts import NotWaiting, OtherVersion
from cohort.runs.models import Attempt, Checkpoint, Node, Run
from cohort.runs.schedule import queue, seats, takeable
from cohort.runs.selectors.queue import waiting_rows
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web import control
from tests.web.control import beat, checkpoint, claim, database_now, finish, fresh, let_pass, node, waiting, why
from tests.web.run_page import queries

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
        on, pk = Node.objects.get(name=node), self.runs[hint or gets].pk
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
        found = {names[row.run.pk]: row for row in waiting_rows()}
        assert [row.place for row in found.values()] == [*range(1, len(found) + 1)]
        if "order" in page:
            assert list(found) == page["order"]
        if "takeable" in page:
            assert [names[run.pk] for run in takeable(queue(), seats())] == page["takeable"]
        for name, needs in page.get("needs", {}).items():
            assert found[name].needs == needs
        for name, words in page.get("reasons", {}).items():
            why = re.sub(r"\d\d:\d\d:\d\d", "{time}", found[name].why)
            assert why == words.replace("{version}", cohort.__version__)


@pytest.mark.parametrize("steps", cases("runs/schedule", "steps"))
def test_whose_turn_it_is(maker: Maker, steps: list[dict[str, Any]]) -> None:
    scene = Scene(maker)
    for step in steps:
        getattr(scene, step["do"])(**{name: value for name, value in step.items() if name != "do"})


def test_the_row_of_one_run_is_that_among_all(maker: Maker, gpu1: Node) -> None:
    first, mine = waiting(maker, 9), waiting(maker, 1)
    waiting(maker, 0)
    (row,) = waiting_rows(only=mine)
    assert (row.run.pk, row.place, row.since) == (mine.pk, 2, mine.queued_at)
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
    asked, run = database_now(), Run.objects.get()
    with pytest.raises(NotWaiting, match="kept for gpu-1") as kept:
        claim(other, run.pk)
    seconds = re.search(r"for another (\d+) s$", str(kept.value))
    assert seconds is not None
    assert run.queued_at is not None
    most, least = (60 - (moment - run.queued_at).total_seconds() for moment in (asked, database_now()))
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
