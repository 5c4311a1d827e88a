"""Whose turn it is: between projects and inside one, by label, GPUs and limits; and what the page of the queue says of
it. Where the checkpoints are is in test_schedule_kept."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

import cohort
from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.runs.attempts import NotWaiting, OtherVersion, attempt_claim
from cohort.runs.models import Attempt, Node, Run
from cohort.runs.schedule import queue, seats, takeable
from cohort.runs.selectors.queue import waiting_rows
from tests.web.conftest import PROBLEMS, R1_EXACT
from tests.web.control import beat, claim, finish, gpu1, info, node, rows, waiting, why
from tests.web.run_rows import Maker

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def other(alice: User, tiny_model_folder: str) -> Maker:
    """A second project."""
    project = project_create(slug="other", name="Another project", owner=alice)
    return Maker(
        project,
        alice,
        base_model_register(project=project, actor=alice, name="tiny", path=tiny_model_folder),
        dataset_create(project=project, actor=alice, name="d", format="jsonl", chunks=[PROBLEMS], source="tests"),
        verifier_version_create(project=project, actor=alice, name="r", spec=R1_EXACT),
    )


# ---------------------------------------------------------------------- order


def test_inside_a_project_priority_comes_first_and_then_the_longest_wait(maker: Maker, gpu1: Node) -> None:
    late, early = waiting(maker, 1), waiting(maker, 9)
    low, high = waiting(maker, 99, priority=-10), waiting(maker, 0, priority=10)
    turns = [high, early, late, low]
    assert [row.run.pk for row in waiting_rows()] == [run.pk for run in turns]
    assert [row.place for row in waiting_rows()] == [1, 2, 3, 4]
    assert [claim(gpu1, low.pk).run_id for _ in turns] == [run.pk for run in turns], "the message is a hint"


def test_projects_take_turns_by_what_they_have_running(maker: Maker, other: Maker, gpu1: Node) -> None:
    """Ours has one running, for an hour, and two that wait for long; theirs has three that came late. Theirs has none
    running, so it is first; then both have one, and theirs used less; then ours has one and theirs two; and so on."""
    claim(gpu1, waiting(maker, 200).pk)
    ours = [waiting(maker, 100), waiting(maker, 90)]
    theirs = [waiting(other, 3), waiting(other, 2), waiting(other, 1)]
    Attempt.objects.update(claimed_at=Now() - HOUR)
    turns = [theirs[0], theirs[1], ours[0], theirs[2], ours[1]]
    assert [row.run.pk for row in waiting_rows()] == [run.pk for run in turns]
    assert [claim(gpu1).run_id for _ in turns] == [run.pk for run in turns]


def test_of_two_projects_with_as_many_running_the_one_that_used_less_is_first(
    maker: Maker, other: Maker, gpu1: Node
) -> None:
    finish(claim(gpu1, waiting(maker, 50).pk), "cancelled")
    Attempt.objects.update(claimed_at=F("ended_at") - HOUR, ended_at=F("ended_at"))
    first, second = waiting(maker, 30), waiting(other, 1)
    assert [row.run.pk for row in waiting_rows()] == [second.pk, first.pk]
    assert claim(gpu1).run_id == second.pk


def test_the_row_of_one_run_is_that_among_all(maker: Maker, other: Maker, gpu1: Node) -> None:
    first, mine = waiting(other, 9), waiting(maker, 1)
    waiting(maker, 0)
    (row,) = waiting_rows(only=mine)
    assert (row.run.pk, row.place, row.since) == (mine.pk, 2, mine.queued_at)
    assert row.why == rows()[mine.pk].why == "behind 1 other run"
    claim(gpu1, first.pk)
    assert waiting_rows(only=Run.objects.get(pk=first.pk)) == [], "it no longer waits"


# ---------------------------------------------------------------------- what a node can


def test_label_and_gpus_decide_where_a_run_goes(maker: Maker, gpu1: Node) -> None:
    plain, two = waiting(maker, 1), waiting(maker, 3, gpus=2)
    labelled, both = waiting(maker, 5, node_label="a100"), waiting(maker, 7, node_label="a100", gpus=2)
    assert [rows()[run.pk].needs for run in (plain, two, labelled, both)] == [
        "any node",
        "2 GPUs on one node",
        "a node with the label a100",
        "2 GPUs on a node with the label a100",
    ]
    assert claim(gpu1).run_id == plain.pk
    with pytest.raises(NotWaiting, match=r"run \d+ waits: no node that is here has 2 GPUs \(gpu-1 has none\)"):
        claim(gpu1, two.pk)
    one_gpu = node("gpu-2", gpus=1, labels=("a100", "fast"))
    assert claim(one_gpu).run_id == labelled.pk
    assert why(both) == "no node with the label a100 that is here has 2 GPUs (gpu-2 has 1)"
    assert why(two) == "no node that is here has 2 GPUs (gpu-1 has none; gpu-2 has 1)"
    assert claim(node("gpu-3", gpus=2)).run_id == two.pk
    assert claim(node("gpu-4", gpus=8, labels=("a100",))).run_id == both.pk


def test_what_nobody_here_is_called_is_said_with_what_they_are(maker: Maker, gpu1: Node) -> None:
    node("gpu-2", labels=("l4", "fast"))
    run = waiting(maker, node_label="a100")
    assert why(run) == "no node that is here has the label a100 (gpu-1: no label; gpu-2: fast, l4)"
    Node.objects.update(last_seen_at=Now() - HOUR)
    assert why(run) == "no node is here"


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


def test_a_draining_node_takes_nothing_and_gives_back_what_it_has(maker: Maker, gpu1: Node) -> None:
    attempt = claim(gpu1, waiting(maker).pk)
    Node.objects.filter(pk=gpu1.pk).update(draining="finish")
    assert beat(attempt)[0] == "run"
    Node.objects.filter(pk=gpu1.pk).update(draining="move")
    assert beat(attempt)[0] == "preempt"
    Run.objects.update(desired="cancel")
    assert beat(attempt)[0] == "cancel"
    run = waiting(maker)
    with pytest.raises(NotWaiting, match="gpu-1 is draining and takes no new run"):
        claim(gpu1, run.pk)
    assert why(run) == "gpu-1 is draining and takes no new run"
    assert claim(node("gpu-2")).run_id == run.pk


def test_a_worker_of_another_version_gets_nothing(maker: Maker, gpu1: Node) -> None:
    run = waiting(maker)
    other = info(versions={"cohort-grpo": "9.9"})
    with pytest.raises(OtherVersion, match=f"of version 9.9 and the platform of {cohort.__version__}"):
        attempt_claim(run_id=run.pk, node=gpu1, info=other)
    gpu1.refresh_from_db()
    assert gpu1.info["versions"] == {"cohort-grpo": "9.9"}, "the page of nodes says why it stands idle"
    same = info(versions={"cohort-grpo": cohort.__version__})
    assert attempt_claim(run_id=run.pk, node=gpu1, info=same).attempt.run_id == run.pk


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"versions": {"cohort-grpo": "0.0.0"}}, f"gpu-1 is of version 0.0.0, not {cohort.__version__}"),
        ({"refuses": "1.2 GiB free on its disk"}, "gpu-1 refuses: 1.2 GiB free on its disk"),
    ],
)
def test_a_node_that_takes_no_run_is_no_place_for_one(
    maker: Maker, gpu1: Node, told: dict[str, object], words: str
) -> None:
    Node.objects.update(info=info(**told).model_dump(mode="json"))
    run = waiting(maker)
    assert why(run) == words
    assert takeable(queue(), seats()) == [], "no message is sent for nobody"
    node("gpu-2")
    assert why(run) == "a node takes it within seconds"
    assert takeable(queue(), seats()) == [run]


def test_a_worker_that_refuses_gets_nothing(maker: Maker, gpu1: Node) -> None:
    run = waiting(maker)
    with pytest.raises(NotWaiting, match="the worker on gpu-1 takes no run now: the disk is full"):
        attempt_claim(run_id=run.pk, node=gpu1, info=info(refuses="the disk is full"))
    assert why(run) == "gpu-1 refuses: the disk is full"
    assert attempt_claim(run_id=run.pk, node=gpu1, info=info()).attempt.run_id == run.pk


def test_a_hint_of_no_run_is_an_error_only_when_nothing_waits(maker: Maker, gpu1: Node) -> None:
    with pytest.raises(Run.DoesNotExist):
        claim(gpu1, 10**6)
    run = waiting(maker)
    assert claim(gpu1, 10**6).run_id == run.pk


# ---------------------------------------------------------------------- limits


def test_a_project_runs_no_more_than_its_limit(maker: Maker, other: Maker, gpu1: Node) -> None:
    Project.objects.filter(pk=maker.project.pk).update(max_running=2)
    mine = [waiting(maker, 9 - place) for place in range(3)]
    for run in mine[:2]:
        assert claim(gpu1, run.pk).run_id == run.pk
    assert why(mine[2]) == "the project's limit of running runs is reached (2 of 2 run)"
    with pytest.raises(NotWaiting, match="limit of running runs is reached"):
        claim(gpu1, mine[2].pk)
    theirs = waiting(other)
    assert claim(gpu1, mine[2].pk).run_id == theirs.pk
    finish(Attempt.objects.get(run=mine[0]), "cancelled")
    assert claim(gpu1).run_id == mine[2].pk


def test_a_project_that_used_its_hours_waits_until_old_ones_no_longer_count(maker: Maker, gpu1: Node) -> None:
    """120 hours, 20 days ago, of 100: free when 20 of them are 30 days old, in 10 days and 20 hours less 120 ago."""
    Project.objects.filter(pk=maker.project.pk).update(gpu_hours_limit=100)
    finish(claim(gpu1, waiting(maker).pk), "cancelled")
    Attempt.objects.update(ended_at=Now() - timedelta(days=20), claimed_at=Now() - timedelta(days=20, hours=120))
    run = waiting(maker)
    attempt = Attempt.objects.get()
    free = attempt.claimed_at + timedelta(days=30, hours=20)
    frees = f"frees at {free:%Y-%m-%d %H:%M} UTC if nothing more is used"
    assert why(run) == f"the project's GPU-hours are used up (120 of 100 in 30 days; {frees})"
    with pytest.raises(NotWaiting, match="GPU-hours are used up"):
        claim(gpu1, run.pk)
    Project.objects.filter(pk=maker.project.pk).update(gpu_hours_limit=121)
    assert claim(gpu1).run_id == run.pk


def test_a_long_queue_of_a_project_out_of_hours_is_read_once(maker: Maker, gpu1: Node) -> None:
    """Six queries for the queue, one for the nodes, one for when the hours are free."""
    Project.objects.filter(pk=maker.project.pk).update(gpu_hours_limit=1)
    finish(claim(gpu1, waiting(maker).pk), "cancelled")
    Attempt.objects.update(ended_at=Now(), claimed_at=Now() - 2 * HOUR)
    run = waiting(maker)
    with CaptureQueriesContext(connection) as short:
        waiting_rows()
    for _ in range(29):
        waiting(maker)
    with CaptureQueriesContext(connection) as long:
        found = waiting_rows()
    with CaptureQueriesContext(connection) as one:
        waiting_rows(only=run)
    assert len(found) == 30
    assert {row.why for row in found} == {rows()[run.pk].why}
    assert "GPU-hours are used up" in found[0].why
    assert len(short) == len(long) == len(one) <= 8


# ---------------------------------------------------------------------- busy


def test_who_is_busy_and_who_is_before_is_said(maker: Maker, gpu1: Node) -> None:
    gpu2 = node("gpu-2")
    first, second, third = (waiting(maker, 9 - place) for place in range(3))
    assert [why(run) for run in (first, second, third)] == [
        "a node takes it within seconds",
        "a node takes it within seconds",
        "behind 2 other runs",
    ]
    claim(gpu1)
    assert (why(second), why(third)) == ("a node takes it within seconds", "behind 1 other run")
    claim(gpu2)
    assert why(third) == "all 2 nodes that could take it are busy"
    fourth = waiting(maker)
    assert why(fourth) == "all 2 nodes that could take it are busy; behind 1 other run"
    Run.objects.filter(pk=fourth.pk).update(node_label="a100")
    node("gpu-3", labels=("a100",))
    claim(Node.objects.get(name="gpu-3"))
    fifth = waiting(maker, node_label="a100")
    assert why(fifth).startswith("gpu-3, the only node that could take it, is busy")


def test_only_those_before_that_a_node_of_its_own_may_take_are_counted(maker: Maker, gpu1: Node) -> None:
    """gpu-1 may take any run without a label, gpu-2 those with a100 as well; nobody here takes b200."""
    node("gpu-2", labels=("a100",))
    labels = ("", "a100", "b200", "a100", "", "a100")
    found = [waiting(maker, 9 - place, node_label=label) for place, label in enumerate(labels)]
    said = [why(run) for run in found]
    assert said[0] == "a node takes it within seconds"
    assert said[1] == "behind 1 other run", "gpu-2 may take the first"
    assert said[2].startswith("no node that is here has the label b200")
    assert said[3:] == ["behind 2 other runs", "behind 3 other runs", "behind 4 other runs"]
