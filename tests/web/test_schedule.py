"""Whose turn it is: between projects and inside one, by label, GPUs and limits, and where a run's checkpoints are; and
what the page of the queue says of it."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

import cohort
from cohort.accounts.models import Project
from cohort.runs.attempts import NotWaiting, OtherVersion, attempt_claim
from cohort.runs.models import Attempt, Checkpoint, Node, Run
from cohort.runs.schedule import queue, seats, takeable
from cohort.runs.selectors.queue import waiting_rows
from tests.web.control import (
    beat,
    checkpoint,
    claim,
    database_now,
    finish,
    gpu1,
    info,
    let_pass,
    node,
    resumed,
    rows,
    steps,
    train,
    waiting,
    why,
)
from tests.web.run_rows import Maker

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
AT_ONCE = "a node takes it within seconds"


@pytest.fixture
def other(maker: Maker) -> Callable[[float], Run]:
    """A waiting run of a second project."""
    theirs = Project.objects.get(slug="theirs")

    def make(minutes: float = 0) -> Run:
        return waiting(maker, minutes, project=theirs)

    return make


def refused(on: Node, run: Run, words: str) -> None:
    """What a claim is told is what the page of the queue says."""
    with pytest.raises(NotWaiting, match=re.escape(words)):
        claim(on, run.pk)


def turns(*runs: Run) -> None:
    assert [row.run.pk for row in waiting_rows()] == [run.pk for run in runs]


def update(on: Node, **fields: Any) -> None:
    Node.objects.filter(pk=on.pk).update(**fields)


# ---------------------------------------------------------------------- order


def test_inside_a_project_priority_comes_first_and_then_the_longest_wait(maker: Maker, gpu1: Node) -> None:
    late, early = waiting(maker, 1), waiting(maker, 9)
    low, high = waiting(maker, 99, priority=-10), waiting(maker, 0, priority=10)
    order = [high, early, late, low]
    turns(*order)
    assert [row.place for row in waiting_rows()] == [1, 2, 3, 4]
    assert [claim(gpu1, low.pk).run_id for _ in order] == [run.pk for run in order], "the message is a hint"


def test_projects_take_turns_by_what_they_have_running(maker: Maker, other: Callable[..., Run], gpu1: Node) -> None:
    """Ours has one running, for an hour, and two that wait for long; theirs has three that came late. Theirs has none
    running, so it is first; then both have one, and theirs used less; then ours has one and theirs two; and so on."""
    claim(gpu1, waiting(maker, 200).pk)
    ours = [waiting(maker, 100), waiting(maker, 90)]
    theirs = [other(3), other(2), other(1)]
    Attempt.objects.update(claimed_at=Now() - HOUR)
    order = [theirs[0], theirs[1], ours[0], theirs[2], ours[1]]
    turns(*order)
    assert [claim(gpu1).run_id for _ in order] == [run.pk for run in order]


def test_of_two_projects_with_as_many_running_the_one_that_used_less_is_first(
    maker: Maker, other: Callable[..., Run], gpu1: Node
) -> None:
    finish(claim(gpu1, waiting(maker, 50).pk), "cancelled")
    Attempt.objects.update(claimed_at=F("ended_at") - HOUR)
    first, second = waiting(maker, 30), other(1)
    turns(second, first)
    assert claim(gpu1).run_id == second.pk


def test_the_row_of_one_run_is_that_among_all(maker: Maker, other: Callable[..., Run], gpu1: Node) -> None:
    first, mine = other(9), waiting(maker, 1)
    waiting(maker, 0)
    (row,) = waiting_rows(only=mine)
    assert (row.run.pk, row.place, row.since) == (mine.pk, 2, mine.queued_at)
    assert row.why == why(mine) == "behind 1 other run"
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
    assert why(labelled) == "no node that is here has the label a100 (gpu-1: no label)"
    assert claim(gpu1).run_id == plain.pk
    refused(gpu1, two, f"run {two.pk} waits: no node that is here has 2 GPUs (gpu-1 has none)")
    assert claim(node("gpu-2", gpus=1, labels=("l4", "a100"))).run_id == labelled.pk
    assert why(both) == "no node with the label a100 that is here has 2 GPUs (gpu-2 has 1)"
    assert why(two) == "no node that is here has 2 GPUs (gpu-1 has none; gpu-2 has 1)"
    Run.objects.filter(pk=both.pk).update(node_label="b200")
    assert why(both) == "no node that is here has the label b200 (gpu-1: no label; gpu-2: a100, l4)"
    Run.objects.filter(pk=both.pk).update(node_label="a100")
    assert claim(node("gpu-3", gpus=2)).run_id == two.pk
    assert claim(node("gpu-4", gpus=8, labels=("a100",))).run_id == both.pk
    late = waiting(maker)
    Node.objects.update(last_seen_at=Now() - HOUR)
    assert why(late) == "no node is here"


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
    for how, desired in (("finish", "run"), ("move", "preempt")):
        update(gpu1, draining=how)
        assert beat(attempt)[0] == desired
    Run.objects.update(desired="cancel")
    assert beat(attempt)[0] == "cancel", "a person's word counts for more"
    run = waiting(maker)
    refused(gpu1, run, why(run))
    assert why(run) == "gpu-1 is draining and takes no new run"
    assert claim(node("gpu-2")).run_id == run.pk


def test_a_worker_of_another_version_gets_nothing(maker: Maker, gpu1: Node) -> None:
    run = waiting(maker)
    with pytest.raises(OtherVersion, match=f"of version 9.9 and the platform of {cohort.__version__}"):
        attempt_claim(run_id=run.pk, node=gpu1, info=info(versions={"cohort-grpo": "9.9"}))
    gpu1.refresh_from_db()
    assert gpu1.info["versions"] == {"cohort-grpo": "9.9"}, "the page of nodes says why it stands idle"
    same = info(versions={"cohort-grpo": cohort.__version__})
    assert attempt_claim(run_id=run.pk, node=gpu1, info=same).attempt.run_id == run.pk


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ({"versions": {"cohort-grpo": "0.0.0"}}, f"gpu-1 is of version 0.0.0, not {cohort.__version__}"),
        ({"refuses": "the disk is full"}, "gpu-1 refuses: the disk is full"),
    ],
)
def test_a_node_that_takes_no_run_is_none_to_wait_for(
    maker: Maker, gpu1: Node, reports: dict[str, object], words: str
) -> None:
    update(gpu1, info=info(**reports).model_dump(mode="json"))
    run = waiting(maker)
    assert why(run) == words
    assert takeable(queue(), seats()) == [], "no message is sent for nobody"
    with pytest.raises((NotWaiting, OtherVersion)):
        attempt_claim(run_id=run.pk, node=gpu1, info=info(**reports))
    node("gpu-2")
    assert why(run) == AT_ONCE
    assert takeable(queue(), seats()) == [run]


def test_a_hint_of_no_run_is_an_error_only_when_nothing_waits(maker: Maker, gpu1: Node) -> None:
    with pytest.raises(Run.DoesNotExist):
        claim(gpu1, 10**6)
    run = waiting(maker)
    assert claim(gpu1, 10**6).run_id == run.pk


# ---------------------------------------------------------------------- limits


def test_a_project_runs_no_more_than_its_limit(maker: Maker, other: Callable[..., Run], gpu1: Node) -> None:
    Project.objects.filter(pk=maker.project.pk).update(max_running=2)
    mine = [waiting(maker, 9 - at) for at in range(3)]
    for run in mine[:2]:
        assert claim(gpu1, run.pk).run_id == run.pk
    assert why(mine[2]) == "the project's limit of running runs is reached (2 of 2 run)"
    refused(gpu1, mine[2], why(mine[2]))
    theirs = other()
    assert claim(gpu1, mine[2].pk).run_id == theirs.pk
    finish(Attempt.objects.get(run=mine[0]), "cancelled")
    assert claim(gpu1).run_id == mine[2].pk


def test_a_project_that_used_its_hours_waits_until_old_ones_no_longer_count(maker: Maker, gpu1: Node) -> None:
    """120 hours, 20 days ago, of 100: free when 20 of them are 30 days old, in 10 days and 20 hours less 120 ago."""
    Project.objects.filter(pk=maker.project.pk).update(gpu_hours_limit=100)
    finish(claim(gpu1, waiting(maker).pk), "cancelled")
    Attempt.objects.update(ended_at=Now() - timedelta(days=20), claimed_at=Now() - timedelta(days=20, hours=120))
    run = waiting(maker)
    free = Attempt.objects.get().claimed_at + timedelta(days=30, hours=20)
    frees = f"frees at {free:%Y-%m-%d %H:%M} UTC if nothing more is used"
    assert why(run) == f"the project's GPU-hours are used up (120 of 100 in 30 days; {frees})"
    refused(gpu1, run, why(run))
    with CaptureQueriesContext(connection) as short:
        waiting_rows()
    for _ in range(9):
        waiting(maker)
    with CaptureQueriesContext(connection) as long:
        whole = waiting_rows()
    with CaptureQueriesContext(connection) as single:
        waiting_rows(only=run)
    assert {row.why for row in whole} == {why(run)}
    assert len(short) == len(long) == len(single) <= 8, "the queue, the nodes, and when the hours are free"
    Project.objects.filter(pk=maker.project.pk).update(gpu_hours_limit=121)
    assert claim(gpu1).run_id == run.pk


# ---------------------------------------------------------------------- busy


def test_who_is_busy_and_who_is_before_is_said(maker: Maker, gpu1: Node) -> None:
    gpu2 = node("gpu-2")
    first, second, third = (waiting(maker, 9 - at) for at in range(3))
    assert [why(run) for run in (first, second, third)] == [AT_ONCE, AT_ONCE, "behind 2 other runs"]
    claim(gpu1)
    assert (why(second), why(third)) == (AT_ONCE, "behind 1 other run")
    claim(gpu2)
    assert why(third) == "all 2 nodes that could take it are busy"
    fourth = waiting(maker)
    assert why(fourth) == "all 2 nodes that could take it are busy; behind 1 other run"
    Run.objects.filter(pk=fourth.pk).update(node_label="a100")
    claim(node("gpu-3", labels=("a100",)))
    assert why(waiting(maker, node_label="a100")).startswith("gpu-3, the only node that could take it, is busy")


def test_only_those_before_that_a_node_of_its_own_may_take_are_counted(maker: Maker, gpu1: Node) -> None:
    """gpu-1 may take any run without a label, gpu-2 those with a100 as well; nobody here takes b200."""
    node("gpu-2", labels=("a100",))
    labels = ("", "a100", "b200", "a100", "", "a100")
    reasons = [why(run) for run in [waiting(maker, 9 - at, node_label=label) for at, label in enumerate(labels)]]
    assert reasons.pop(2).startswith("no node that is here has the label b200")
    behind = ["behind 1 other run", *(f"behind {count} other runs" for count in (2, 3, 4))]
    assert reasons == [AT_ONCE, *behind], "gpu-2 may take the first too"


# ---------------------------------------------------------------------- where the checkpoints are


@pytest.fixture
def came_back(maker: Maker, gpu1: Node) -> Run:
    """A run that gpu-1 had to give back with a checkpoint at step 4 (and, before it, one at 2)."""
    attempt = train(claim(gpu1, waiting(maker).pk), checkpoint(2), *steps(1, 4), checkpoint(4))
    return finish(attempt, "preempted", "worker_shutdown")


@pytest.fixture
def gpu2(came_back: Run) -> Node:
    return node("gpu-2")


def store(step: int) -> None:
    """The checkpoint is on the platform."""
    Checkpoint.objects.filter(step=step).update(stored_at=Now())


def queued(run: Run, **ago: float) -> None:
    Run.objects.filter(pk=run.pk).update(queued_at=Now() - timedelta(**ago))


def test_a_run_waits_for_its_next_try(came_back: Run, gpu1: Node) -> None:
    Run.objects.update(retries=2, not_before=Now() + timedelta(seconds=30))
    came_back.refresh_from_db()
    assert why(came_back) == f"waits until {came_back.not_before:%H:%M:%S} UTC after a failure (try 2 of 5)"
    refused(gpu1, came_back, why(came_back))
    let_pass(came_back)
    assert claim(gpu1).run_id == came_back.pk


def test_a_run_is_kept_for_the_node_that_has_its_newest_checkpoint(came_back: Run, gpu1: Node, gpu2: Node) -> None:
    """An older one is on the platform, so after a minute another node may go on from that."""
    store(2)
    assert why(came_back) == AT_ONCE, "gpu-1 may come at once"
    assert came_back.queued_at is not None
    asked = database_now()
    with pytest.raises(NotWaiting, match="kept for gpu-1, which has its newest checkpoint, for another") as kept:
        claim(gpu2, came_back.pk)
    seconds = re.search(r"for another (\d+) s$", str(kept.value))
    assert seconds is not None
    most, least = (60 - (moment - came_back.queued_at).total_seconds() for moment in (asked, database_now()))
    assert round(least) <= int(seconds[1]) <= round(most) <= 60
    queued(came_back, seconds=61)
    assert claim(gpu2).run_id == came_back.pk


NOT_KEPT: dict[str, Callable[[Node], object]] = {
    "the clock was set back": lambda _: (store(2), Run.objects.update(queued_at=Now() + HOUR)),
    "the newest is on the platform": lambda _: store(4),
    "nobody has it": lambda on: update(on, last_seen_at=Now() - HOUR),
    "it begins anew": lambda on: (update(on, draining="move"), Run.objects.update(from_start=True)),
}


@pytest.mark.parametrize("because", NOT_KEPT)
def test_a_run_is_not_kept_in_vain(came_back: Run, gpu1: Node, gpu2: Node, because: str) -> None:
    NOT_KEPT[because](gpu1)
    assert claim(gpu2).run_id == came_back.pk


def test_the_node_that_has_it_may_come_at_once(came_back: Run, gpu1: Node, gpu2: Node) -> None:
    assert why(came_back) == AT_ONCE
    assert claim(gpu1).run_id == came_back.pk


def test_a_node_that_can_have_no_checkpoint_leaves_the_run_to_those_that_may_come_back(
    came_back: Run, gpu1: Node, gpu2: Node
) -> None:
    """For a quarter of an hour after they were last heard of, however long the run has waited; then it takes the run
    and fails for that reason, instead of nobody ever saying so."""
    update(gpu1, last_seen_at=Now() - timedelta(minutes=14))
    queued(came_back, hours=5)
    gpu1.refresh_from_db()
    until = gpu1.last_seen_at + timedelta(minutes=15)  # type: ignore[operator]
    assert why(came_back) == f"waits until {until:%H:%M:%S} UTC for gpu-1, the only node that has a checkpoint of it"
    refused(gpu2, came_back, "the only node that has a checkpoint of it")
    update(gpu1, last_seen_at=Now() - timedelta(minutes=16))
    assert claim(gpu2).run_id == came_back.pk


def test_a_run_waits_as_long_as_the_node_that_has_its_checkpoints_is_busy(
    maker: Maker, came_back: Run, gpu1: Node, gpu2: Node
) -> None:
    """Nobody fails it for want of a checkpoint that is there."""
    busy_with = claim(gpu1, waiting(maker, priority=10).pk)
    assert busy_with.run_id != came_back.pk
    queued(came_back, hours=5)
    assert why(came_back) == "gpu-1, the only node that could take it, is busy"
    refused(gpu2, came_back, "waits for gpu-1, the only node that has a checkpoint of it")
    finish(busy_with, "cancelled")
    assert claim(gpu1).run_id == came_back.pk


@pytest.mark.parametrize("how", ["finish", "move"])
def test_a_run_whose_only_checkpoint_is_on_a_draining_node_says_what_to_do(
    came_back: Run, gpu1: Node, gpu2: Node, how: str
) -> None:
    update(gpu1, draining=how)
    queued(came_back, hours=5)
    assert why(came_back).startswith("its only checkpoint is on gpu-1, which is being drained: undrain it, or cancel")
    for asking in (gpu1, gpu2):
        refused(asking, came_back, why(came_back))
    Node.objects.update(draining="")
    assert claim(gpu1).run_id == came_back.pk


def test_nodes_that_share_the_folder_of_runs_have_each_other_s_checkpoints(
    came_back: Run, gpu1: Node, gpu2: Node
) -> None:
    """gpu-2 shares gpu-1's folder, so that it need not wait for gpu-1, here or gone; gpu-3 has another one."""
    gpu3 = node("gpu-3")
    for one, folder in ((gpu1, "net:1"), (gpu2, "net:1"), (gpu3, "disk:3")):
        update(one, info=info(runs_id=folder).model_dump(mode="json"))
    for one in (gpu1, gpu2, gpu3):
        one.refresh_from_db()
    refused(gpu3, came_back, "kept for gpu-1 or gpu-2, which have its newest checkpoint")
    update(gpu1, revoked_at=Now())
    queued(came_back, hours=5)
    refused(gpu3, came_back, "waits for gpu-2, the only node that has a checkpoint of it")
    assert claim(gpu2).run_id == came_back.pk


def test_a_node_that_has_an_older_checkpoint_takes_it_after_a_minute(came_back: Run, gpu1: Node, gpu2: Node) -> None:
    update(gpu1, last_seen_at=Now() - timedelta(minutes=16))
    again = train(claim(gpu2), resumed(4), *steps(5, 6), checkpoint(6))
    update(gpu1, last_seen_at=Now())
    run = finish(again, "preempted", "worker_shutdown")
    assert why(run) == AT_ONCE
    refused(gpu1, run, "kept for gpu-2")
    queued(run, seconds=61)
    assert claim(gpu1).run_id == run.pk
