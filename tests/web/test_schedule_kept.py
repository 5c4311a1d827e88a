"""Where a run goes on after an attempt: with a node that has its checkpoints, and what becomes of it where that one is
busy, drained, revoked or gone."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from cohort.runs.attempts import NotWaiting
from cohort.runs.models import Checkpoint, Node, Run
from tests.web.control import (
    checkpoint,
    claim,
    database_now,
    finish,
    gpu1,
    info,
    let_pass,
    node,
    resumed,
    steps,
    train,
    waiting,
    why,
)
from tests.web.run_rows import Maker

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def came_back(maker: Maker, gpu1: Node) -> Callable[..., Run]:
    """A run that gpu-1 had to give back with a checkpoint at step 4 (and, before it, one at 2)."""

    def make(**checkpoint_fields: object) -> Run:
        attempt = claim(gpu1, waiting(maker).pk)
        train(attempt, checkpoint(2), *steps(1, 4), checkpoint(4))
        Checkpoint.objects.filter(step=4).update(**checkpoint_fields)
        return finish(attempt, "preempted", "worker_shutdown")

    return make


def test_a_run_waits_for_its_next_try(maker: Maker, gpu1: Node, came_back: Callable[..., Run]) -> None:
    run = came_back()
    Run.objects.filter(pk=run.pk).update(retries=2, not_before=Now() + timedelta(seconds=30))
    run.refresh_from_db()
    assert why(run) == f"waits until {run.not_before:%H:%M:%S} UTC after a failure (try 2 of 5)"
    with pytest.raises(NotWaiting, match="after a failure"):
        claim(gpu1, run.pk)
    let_pass(run)
    assert claim(gpu1).run_id == run.pk


def test_a_run_is_kept_for_the_node_that_has_its_newest_checkpoint(came_back: Callable[..., Run], gpu1: Node) -> None:
    """An older one is on the platform, so after a minute another node may go on from that."""
    run = came_back()
    Checkpoint.objects.filter(step=2).update(stored_at=Now())
    gpu2 = node("gpu-2")
    assert run.queued_at is not None
    asked = database_now()
    with pytest.raises(NotWaiting, match="kept for gpu-1, which has its newest checkpoint, for another") as kept:
        claim(gpu2, run.pk)
    said = re.search(r"for another (\d+) s$", str(kept.value))
    assert said is not None
    most, least = (60 - (moment - run.queued_at).total_seconds() for moment in (asked, database_now()))
    assert round(least) <= int(said[1]) <= round(most) <= 60
    Run.objects.update(queued_at=Now() - timedelta(seconds=61))
    assert claim(gpu2).run_id == run.pk


def test_a_clock_that_was_set_back_keeps_no_run_for_longer(came_back: Callable[..., Run], gpu1: Node) -> None:
    run = came_back()
    Checkpoint.objects.filter(step=2).update(stored_at=Now())
    Run.objects.update(queued_at=Now() + HOUR)
    assert claim(node("gpu-2")).run_id == run.pk


def test_the_node_that_has_it_may_come_at_once(came_back: Callable[..., Run], gpu1: Node) -> None:
    run = came_back()
    node("gpu-2")
    assert why(run) == "a node takes it within seconds"
    assert claim(gpu1).run_id == run.pk


@pytest.mark.parametrize("reason", ["stored", "away"])
def test_a_run_is_not_kept_in_vain(came_back: Callable[..., Run], gpu1: Node, reason: str) -> None:
    run = came_back(**({"stored_at": Now()} if reason == "stored" else {}))
    gone = {
        "stored": {},
        "away": {"last_seen_at": Now() - HOUR},
    }
    if gone[reason]:
        Node.objects.filter(pk=gpu1.pk).update(**gone[reason])
    assert claim(node("gpu-2")).run_id == run.pk


def test_a_node_that_can_have_no_checkpoint_leaves_the_run_to_those_that_may_come_back(
    came_back: Callable[..., Run], gpu1: Node
) -> None:
    """For a quarter of an hour after they were last heard of, however long the run has waited; then it takes the run
    and fails for that reason, instead of nobody ever saying so."""
    run = came_back()
    Node.objects.filter(pk=gpu1.pk).update(last_seen_at=Now() - timedelta(minutes=14))
    gpu2 = node("gpu-2")
    Run.objects.update(queued_at=Now() - timedelta(hours=5))
    gpu1.refresh_from_db()
    until = gpu1.last_seen_at + timedelta(minutes=15)  # type: ignore[operator]
    assert why(run) == f"waits until {until:%H:%M:%S} UTC for gpu-1, the only node that has a checkpoint of it"
    with pytest.raises(NotWaiting, match="the only node that has a checkpoint of it"):
        claim(gpu2, run.pk)
    Node.objects.filter(pk=gpu1.pk).update(last_seen_at=Now() - timedelta(minutes=16))
    assert claim(gpu2).run_id == run.pk


def test_a_run_waits_for_the_node_that_has_its_checkpoints_as_long_as_that_one_is_busy(
    maker: Maker, came_back: Callable[..., Run], gpu1: Node
) -> None:
    """Nobody fails it for want of a checkpoint that is there."""
    run = came_back()
    busy_with = claim(gpu1, waiting(maker, priority=10).pk)
    assert busy_with.run_id != run.pk
    gpu2 = node("gpu-2")
    Run.objects.filter(pk=run.pk).update(queued_at=Now() - timedelta(hours=5))
    assert why(run) == "gpu-1, the only node that could take it, is busy"
    words = r"waits for gpu-1, the only node that has a checkpoint of it"
    with pytest.raises(NotWaiting, match=words):
        claim(gpu2, run.pk)
    finish(busy_with, "cancelled")
    assert claim(gpu1).run_id == run.pk


@pytest.mark.parametrize("how", ["finish", "move"])
def test_a_run_whose_only_checkpoint_is_on_a_draining_node_waits_and_says_what_to_do(
    came_back: Callable[..., Run], gpu1: Node, how: str
) -> None:
    run = came_back()
    Node.objects.filter(pk=gpu1.pk).update(draining=how)
    gpu2 = node("gpu-2")
    Run.objects.update(queued_at=Now() - timedelta(hours=5))
    words = (
        "its only checkpoint is on gpu-1, which is being drained: undrain it, or cancel the run and retry it from the "
        "first step"
    )
    assert why(run) == words
    for asking in (gpu1, gpu2):
        with pytest.raises(NotWaiting, match=words):
            claim(asking, run.pk)
    Node.objects.update(draining="")
    assert claim(gpu1).run_id == run.pk


def test_a_run_that_a_person_lets_begin_anew_needs_no_draining_node(came_back: Callable[..., Run], gpu1: Node) -> None:
    run = came_back()
    Node.objects.filter(pk=gpu1.pk).update(draining="move")
    Run.objects.filter(pk=run.pk).update(from_start=True)
    assert claim(node("gpu-2")).run_id == run.pk


def test_nodes_that_share_the_folder_of_runs_have_each_other_s_checkpoints(
    came_back: Callable[..., Run], gpu1: Node
) -> None:
    """gpu-2 shares gpu-1's folder, so that it need not wait for gpu-1, here or gone; gpu-3 has another one."""
    run = came_back()
    for name, folder in (("gpu-1", "net:1"), ("gpu-2", "net:1"), ("gpu-3", "disk:3")):
        one = gpu1 if name == "gpu-1" else node(name)
        Node.objects.filter(pk=one.pk).update(info=info(runs_id=folder).model_dump(mode="json"))
    gpu2, gpu3 = Node.objects.get(name="gpu-2"), Node.objects.get(name="gpu-3")
    with pytest.raises(NotWaiting, match="kept for gpu-1 or gpu-2, which have its newest checkpoint"):
        claim(gpu3, run.pk)
    Node.objects.filter(pk=gpu1.pk).update(revoked_at=Now())
    Run.objects.update(queued_at=Now() - timedelta(hours=5))
    with pytest.raises(NotWaiting, match="waits for gpu-2, the only node that has a checkpoint of it"):
        claim(gpu3, run.pk)
    assert claim(gpu2).run_id == run.pk


def test_a_node_that_has_an_older_checkpoint_takes_it_after_a_minute(came_back: Callable[..., Run], gpu1: Node) -> None:
    run = came_back()
    gpu2 = node("gpu-2")
    Node.objects.filter(pk=gpu1.pk).update(last_seen_at=Now() - timedelta(minutes=16))
    again = train(claim(gpu2), resumed(4), *steps(5, 6), checkpoint(6))
    Node.objects.filter(pk=gpu1.pk).update(last_seen_at=Now())
    run = finish(again, "preempted", "worker_shutdown")
    assert why(run).startswith("a node takes it")
    with pytest.raises(NotWaiting, match="kept for gpu-2"):
        claim(gpu1, run.pk)
    Run.objects.update(queued_at=Now() - timedelta(seconds=61))
    assert claim(gpu1).run_id == run.pk
