"""What becomes of a run whose attempt failed: by cause, by how often, by what it came to; told in words."""

from datetime import timedelta
from typing import Any

import pytest

from cohort.runs import reconcile
from cohort.runs.attempts import StaleFence, attempts_released
from cohort.runs.models import Attempt, Node, Run, RunEvent
from cohort.runs.reconcile import attempts_lost, queued_republish
from grpo_core.wire import LostAttempt, LostAttempts
from tests.web.control import (
    age,
    beat,
    checkpoint,
    claim,
    claimed,
    finish,
    gpu1,
    let_pass,
    node,
    queue_at,
    resumed,
    steps,
    stop_clock,
    train,
)
from tests.web.run_rows import Maker
from tests.worker.queues import take_all

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="queued")


@pytest.fixture
def attempt(run: Run, gpu1: Node) -> Attempt:
    return train(claim(gpu1), checkpoint(0), *steps(1, 40), checkpoint(40))


@pytest.mark.parametrize(
    "code",
    [
        "worker_lost",
        "platform_unreachable",
        "not_answered",
        "worker_error",
        "trainer_killed",
        "trainer_crashed",
        "device_error",
        "nccl_error",
    ],
)
def test_what_may_not_come_again_is_tried_again(
    attempt: Attempt, code: str, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    take_all("platform.seal")
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(attempt, "failed", code, "The trainer died")
    assert run.state == "queued"
    assert run.reason == ("The trainer died. Goes back to the queue and tries again at once from step 40 (1 of 5)")
    assert (run.error_code, run.retries, run.not_before) == (code, 1, None)
    assert take_all("train")[0] == [run.pk]
    assert take_all("platform.seal") == [], "a run that goes on has no record yet"


@pytest.mark.parametrize(
    "code",
    [
        "config_error",
        "out_of_memory",
        "not_finite",
        "reward_error",
        "data_error",
        "sandbox_error",
        "internal_error",
        "checkpoint_missing",
        "trainer_died",
    ],
)
def test_what_would_come_again_ends_the_run(
    attempt: Attempt, code: str, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    take_all("platform.seal")
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(attempt, "failed", code, "That is why")
    assert (run.state, run.reason, run.error_code, run.retries) == ("failed", "That is why", code, 0)
    assert (take_all("train"), take_all("platform.seal")) == ([], [[run.pk]])


def test_five_tries_with_longer_and_longer_waits(attempt: Attempt, run: Run, gpu1: Node) -> None:
    """Each attempt comes ten steps further, so only the number of tries ends it."""
    for number, seconds in enumerate((0, 10, 30, 60, 120), start=1):
        run = finish(attempt, "failed", "device_error", "The GPU fell off the bus")
        wait = "at once" if seconds == 0 else f"in {seconds} s"
        here = 30 + 10 * number
        assert run.reason.endswith(f"tries again {wait} from step {here} ({number} of 5)")
        assert run.not_before == (run.queued_at + timedelta(seconds=seconds) if seconds else None)  # type: ignore[operator]
        let_pass(run)
        attempt = train(claim(gpu1), resumed(here), *steps(here + 1, here + 10), checkpoint(here + 10))
    run = finish(attempt, "failed", "device_error", "The GPU fell off the bus")
    assert run.state == "failed"
    assert run.reason == ("The GPU fell off the bus. It is not tried again: it failed 6 times, and 5 tries are made.")


def test_three_failures_without_a_newer_step_end_it(attempt: Attempt, gpu1: Node) -> None:
    """The first came to step 40; the next three repeat steps 41 to 43 at most, and 41 to 43 are new only once."""
    run = finish(attempt, "failed", "trainer_crashed")
    assert run.barren == 0
    run = finish(train(claim(gpu1), resumed(40), *steps(41, 43)), "failed", "trainer_crashed")
    assert run.barren == 0
    for barren in (1, 2):
        let_pass(run)
        run = finish(train(claim(gpu1), resumed(40), *steps(41, 43)), "failed", "trainer_crashed")
        assert (run.state, run.barren) == ("queued", barren)
    let_pass(run)
    run = finish(claim(gpu1), "failed", "trainer_crashed", "SIGSEGV")
    assert (run.state, run.barren) == ("failed", 3)
    assert run.reason == "SIGSEGV. It is not tried again: 3 failures in a row brought no newer step."


def test_a_failure_that_came_further_begins_the_count_anew(attempt: Attempt, gpu1: Node) -> None:
    run = finish(attempt, "failed", "trainer_crashed")
    for _ in range(2):
        run = finish(claim(gpu1), "failed", "trainer_crashed")
        let_pass(run)
    assert run.barren == 2
    run = finish(train(claim(gpu1), resumed(40), *steps(41, 41)), "failed", "trainer_crashed")
    assert (run.state, run.barren, run.retries) == ("queued", 0, 4)


@pytest.mark.parametrize("code", ["worker_shutdown", "drained"])
def test_a_preempted_run_goes_back_at_once_and_it_is_no_failure(
    attempt: Attempt, code: str, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(attempt, "preempted", code, "The worker was shut down")
    assert (run.state, run.retries, run.barren, run.not_before, run.error_code) == ("queued", 0, 0, None, "")
    assert run.reason == "The worker was shut down. Goes on from step 40"
    assert take_all("train")[0] == [run.pk]


def test_a_run_that_waits_for_its_next_try_is_published_when_that_has_come(
    attempt: Attempt, gpu1: Node, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    finish(attempt, "failed", "nccl_error")
    take_all("train")
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(train(claim(gpu1), resumed(40), *steps(41, 42)), "failed", "nccl_error")
    assert take_all("train") == []
    assert run.not_before is not None
    queue_at(monkeypatch, run.not_before - timedelta(seconds=1))
    with django_capture_on_commit_callbacks(execute=True):
        assert queued_republish() == []
    queue_at(monkeypatch, run.not_before)
    with django_capture_on_commit_callbacks(execute=True):
        assert queued_republish() == [run.pk]
    assert take_all("train") == [[run.pk]]


def test_a_lost_worker_is_a_failure_like_any_other(
    attempt: Attempt, gpu1: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = stop_clock(monkeypatch, reconcile)
    Attempt.objects.update(claimed_at=now - timedelta(seconds=61), lease_until=now - timedelta(seconds=1))
    assert attempts_lost() == [attempt.run_id]
    attempt.refresh_from_db()
    assert (attempt.state, attempt.end_code) == ("lost", "worker_lost")
    run = Run.objects.get()
    assert run.reason.startswith("The worker gpu-1 was last heard of 61 seconds ago.")
    assert run.reason.endswith("Goes back to the queue and tries again at once from step 40 (1 of 5)")
    ended = RunEvent.objects.get(kind="attempt")
    assert (ended.actor, ended.data["code"], ended.data["end"]) == ("platform", "worker_lost", "lost")


def test_a_beat_that_comes_late_and_first_keeps_the_run(attempt: Attempt) -> None:
    age(attempt, 500, "lease_until")
    assert beat(attempt) == ("run", [])
    assert attempts_lost() == []


def test_what_was_ended_beats_no_more(attempt: Attempt) -> None:
    age(attempt, 61, "lease_until")
    attempts_lost()
    with pytest.raises(StaleFence, match="no longer owns the run"):
        beat(attempt)
    with pytest.raises(StaleFence):
        finish(attempt, "finished")


def test_a_worker_that_starts_again_gives_back_what_it_had(attempt: Attempt, maker: Maker, gpu1: Node) -> None:
    other = claim(node("gpu-2"), maker.run(state="queued").pk)
    ended = claim(gpu1, maker.run(state="queued").pk)
    finish(ended, "cancelled")
    told = [attempt, other, ended]
    lost = [LostAttempt(attempt_id=one.pk, fence=one.fence) for one in told]
    wrong = LostAttempt(attempt_id=attempt.pk, fence=attempt.fence + 1)
    assert attempts_released(node=gpu1, lost=LostAttempts(attempts=[wrong])) == []
    assert attempts_released(node=gpu1, lost=LostAttempts(attempts=lost)) == [attempt.run_id]
    assert attempts_released(node=gpu1, lost=LostAttempts(attempts=lost)) == []
    run = Run.objects.get(pk=attempt.run_id)
    assert run.state == "queued"
    assert run.reason.startswith("The worker on gpu-1 ended in the middle of the run and found its processes gone.")
    assert Run.objects.get(pk=other.run_id).state == "starting"


def test_the_next_attempt_is_offered_what_stands(attempt: Attempt, gpu1: Node) -> None:
    finish(attempt, "failed", "worker_lost")
    again = claimed(gpu1)
    assert [(offer.step, offer.fence) for offer in again.resume] == [(40, 1), (0, 1)]
    assert (again.attempt.fence, again.attempt.run.state) == (2, "starting")
