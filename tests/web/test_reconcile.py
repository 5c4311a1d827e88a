"""The reconciler against its own outages, against silence of the trainer, and against messages that were lost."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.runs import reconcile
from cohort.runs.models import Attempt, Node, Run, RunEvent, ServiceBeat
from cohort.runs.outages import leases_count
from grpo_core import records
from tests.sealed_run import ingest
from tests.web.control import age, beat, claim, finish, gpu1, node, queue_at, steps, stop_clock, train
from tests.web.run_rows import Maker
from tests.worker.queues import take_all

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory of runs of other tests."""
    monkeypatch.setattr(reconcile, "_published", {})
    monkeypatch.setattr(reconcile, "_seals_asked", {})


@pytest.fixture
def attempt(maker: Maker, gpu1: Node) -> Attempt:
    maker.run(state="queued")
    return train(claim(gpu1), *steps(1, 3))


# ---------------------------------------------------------------------- what fails


@pytest.fixture
def impossible(maker: Maker) -> Attempt:
    """An attempt whose lease is over and which cannot be ended, because its run has been trained to the end already."""
    run = maker.run(state="sealing")
    first = node("gpu-0")
    return Attempt.objects.create(
        run=run, node=first, fence=1, token_digest="0" * 64, claimed_at=Now() - HOUR, lease_until=Now() - HOUR
    )


def test_what_fails_keeps_nothing_else_from_being_put_right(
    impossible: Attempt, attempt: Attempt, maker: Maker, caplog: Any, django_capture_on_commit_callbacks: Any
) -> None:
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    age(attempt, 90, "lease_until")
    waiting = maker.run(state="queued")
    Run.objects.filter(pk=waiting.pk).update(queued_at=Now() - timedelta(seconds=11))
    take_all("train")
    with (
        pytest.raises(reconcile.RoundFailed, match=r"^failed: lost attempts \(RoundFailed\); all else was reconciled$"),
        django_capture_on_commit_callbacks(execute=True),
    ):
        reconcile.reconcile()
    attempt.refresh_from_db()
    impossible.refresh_from_db()
    assert (attempt.state, impossible.state) == ("lost", "running")
    failed = [record for record in caplog.records if f"the end of attempt {impossible.pk} failed" in record.message]
    assert [record.exc_info[0].__name__ for record in failed] == ["IllegalTransition"], "with its traceback"


# ---------------------------------------------------------------------- stalls


def told_at(moment: datetime) -> None:
    """When the trainer said how far it is."""
    Attempt.objects.update(progress_at=moment)


def stalls() -> list[str]:
    return list(RunEvent.objects.filter(kind="stalled").values_list("message", flat=True))


def test_a_run_that_stands_still_is_said_once(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(attempt, done=3)
    told_at(stop_clock(monkeypatch, reconcile))
    age(attempt, 599, "progress_at")
    beat(attempt, done=3)
    assert reconcile.stalls_told() == []
    age(attempt, 2, "progress_at")
    assert reconcile.stalls_told() == [attempt.run_id]
    assert reconcile.stalls_told() == []
    run, row = Run.objects.get(), Attempt.objects.get()
    assert run.stalled_at == row.progress_at
    assert run.state == "training", "an alarm, not an end"
    assert stalls() == [
        "Nothing has moved for 10 minutes, although the worker on gpu-1 lives. Last seen: training, 3 of 100"
    ]


def test_what_moves_again_is_said_too(attempt: Attempt) -> None:
    beat(attempt, done=3)
    age(attempt, 700, "progress_at")
    reconcile.stalls_told()
    beat(attempt, done=3)
    assert Run.objects.get().stalled_at is not None, "the worker lives, and nothing moves"
    beat(attempt, done=4)
    assert Run.objects.get().stalled_at is None
    assert RunEvent.objects.get(kind="moving").message == "The trainer moves again"


def test_long_steps_have_more_patience(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 60 s: 20 of them are 20 minutes."""
    Run.objects.update(seconds_per_step=60)
    beat(attempt, done=3)
    told_at(stop_clock(monkeypatch, reconcile))
    age(attempt, 1199, "progress_at")
    assert reconcile.stalls_told() == []
    age(attempt, 2, "progress_at")
    assert reconcile.stalls_told() == [attempt.run_id]


def test_records_are_progress(attempt: Attempt) -> None:
    age(attempt, 700, "progress_at", "claimed_at")
    ingest(attempt, [records.StepMetrics(step=4, metrics={"reward": 0.5}, seconds={"total": 1.0})])
    assert reconcile.stalls_told() == []
    age(attempt, 700, "progress_at")
    assert reconcile.stalls_told() == [attempt.run_id]
    ingest(attempt, [records.StepMetrics(step=5, metrics={"reward": 0.5}, seconds={"total": 1.0})])
    assert (Run.objects.get().stalled_at, Run.objects.get().step) == (None, 5)
    assert RunEvent.objects.filter(kind="moving").count() == 1


def test_a_worker_that_is_silent_itself_is_no_stall(attempt: Attempt) -> None:
    age(attempt, 700, "progress_at", "lease_until")
    assert reconcile.stalls_told() == []


# ---------------------------------------------------------------------- messages


def republished(capture: Any) -> list[int]:
    with capture(execute=True):
        return reconcile.queued_republish()


def test_a_message_that_was_lost_is_sent_again(
    maker: Maker, gpu1: Node, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("cohort.runs.reconcile.time.monotonic", lambda: clock[0])
    take_all("train")
    run = maker.run(state="queued")
    assert run.queued_at is not None
    queue_at(monkeypatch, run.queued_at + timedelta(seconds=9))
    assert republished(django_capture_on_commit_callbacks) == [], "its own message is on its way"
    queue_at(monkeypatch, run.queued_at + timedelta(seconds=11))
    assert republished(django_capture_on_commit_callbacks) == [run.pk]
    assert take_all("train") == [[run.pk]]
    clock[0] += 29
    assert republished(django_capture_on_commit_callbacks) == []
    clock[0] += 2
    assert republished(django_capture_on_commit_callbacks) == [run.pk]
    clock[0] += 31
    assert republished(django_capture_on_commit_callbacks) == [], "one lies there: the workers are busy"
    assert take_all("train") == [[run.pk]]


def test_a_run_that_waits_since_before_the_clock_was_set_back_is_told_of(
    maker: Maker, gpu1: Node, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    run = maker.run(state="queued")
    Run.objects.update(queued_at=Now() + HOUR)
    assert republished(django_capture_on_commit_callbacks) == [run.pk]


def test_each_message_goes_to_the_queue_of_nodes_that_can(
    maker: Maker, gpu1: Node, django_capture_on_commit_callbacks: Any
) -> None:
    for name in ("train", "train.a100.gpu2"):
        take_all(name)
    plain, big = maker.run(state="queued"), maker.run(state="queued")
    Run.objects.filter(pk=big.pk).update(node_label="a100", gpus=2)
    Run.objects.update(queued_at=Now() - timedelta(seconds=11))
    assert republished(django_capture_on_commit_callbacks) == [plain.pk], "no node here could take the other"
    node("gpu-2", gpus=2, labels=("a100",))
    assert republished(django_capture_on_commit_callbacks) == [big.pk]
    assert (take_all("train"), take_all("train.a100.gpu2")) == ([[plain.pk]], [[big.pk]])


def test_when_a_place_becomes_free_the_next_is_told(
    maker: Maker, attempt: Attempt, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    waiting = maker.run(state="queued")
    with django_capture_on_commit_callbacks(execute=True):
        finish(attempt, "failed", "reward_error")
    assert take_all("train") == [[waiting.pk]]
