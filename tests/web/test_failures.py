"""What becomes of a run whose attempt ended: by cause, by how often, by what it came to. The rules alone are in
test_retry."""

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


QUEUED = ("queued", [1], [])
ENDED = ("failed", [], [1])


@pytest.mark.parametrize(
    ("end", "code", "follows", "error_code", "retries"),
    [
        ("failed", "trainer_killed", QUEUED, "trainer_killed", 1),
        ("failed", "out_of_memory", ENDED, "out_of_memory", 0),
        ("preempted", "worker_shutdown", QUEUED, "", 0),
        ("preempted", "drained", QUEUED, "", 0),
    ],
)
def test_a_run_goes_on_or_is_recorded(
    attempt: Attempt,
    end: str,
    code: str,
    follows: tuple[str, list[int], list[int]],
    error_code: str,
    retries: int,
    django_capture_on_commit_callbacks: Any,
) -> None:
    """A run that goes on is published at once and has no record yet; one that ended is asked a record for."""
    queues = ("train", "platform.seal")
    for queue in queues:
        take_all(queue)
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(attempt, end, code, "That is why")
    published = [[1] if [run.pk] in take_all(queue) else [] for queue in queues]
    assert (run.state, *published) == follows
    assert (run.error_code, run.retries, run.barren, run.not_before) == (error_code, retries, 0, None)
    assert run.reason.startswith("That is why")
    assert ("step 40" in run.reason) == (run.state == "queued")


def test_five_tries_with_longer_and_longer_waits(attempt: Attempt, gpu1: Node) -> None:
    """Each attempt comes a step further, so only the number of tries ends it."""
    for number, seconds in enumerate((0, 10, 30, 60, 120), start=1):
        run = finish(attempt, "failed", "device_error")
        here = 39 + number
        assert run.reason.endswith(f"from step {here} ({number} of 5)")
        assert run.not_before == (run.queued_at + timedelta(seconds=seconds) if seconds else None)  # type: ignore[operator]
        let_pass(run)
        attempt = train(claim(gpu1), resumed(here), *steps(here + 1, here + 1), checkpoint(here + 1))
    run = finish(attempt, "failed", "device_error")
    assert (run.state, run.retries) == ("failed", 5)


def test_three_failures_without_a_newer_step_end_it(attempt: Attempt, gpu1: Node) -> None:
    """The first came to step 40; the next three repeat steps 41 to 43 at most, and 41 to 43 are new only once. A
    failure that came further begins the count anew."""
    run = finish(attempt, "failed", "trainer_crashed")
    assert run.barren == 0
    for last, barren in ((43, 0), (43, 1), (43, 2), (44, 0)):
        let_pass(run)
        run = finish(train(claim(gpu1), resumed(40), *steps(41, last)), "failed", "trainer_crashed")
        assert (run.state, run.barren) == ("queued", barren)
    Run.objects.update(retries=0, barren=2)
    let_pass(run)
    run = finish(claim(gpu1), "failed", "trainer_crashed")
    assert (run.state, run.barren) == ("failed", 3)


def test_a_run_that_waits_for_its_next_try_is_published_when_that_has_come(
    attempt: Attempt, gpu1: Node, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    finish(attempt, "failed", "nccl_error")
    take_all("train")
    with django_capture_on_commit_callbacks(execute=True):
        run = finish(train(claim(gpu1), resumed(40), *steps(41, 42)), "failed", "nccl_error")
    assert take_all("train") == []
    assert run.not_before is not None
    for early, published in ((1, []), (0, [run.pk])):
        queue_at(monkeypatch, run.not_before - timedelta(seconds=early))
        with django_capture_on_commit_callbacks(execute=True):
            assert queued_republish() == published
    assert take_all("train") == [[run.pk]]


@pytest.mark.parametrize(
    ("field", "seconds", "words"), [("claimed_at", 61, "61 seconds"), ("heartbeat_at", 300, "5 m")]
)
def test_a_lost_worker_is_a_failure_like_any_other(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, field: str, seconds: int, words: str
) -> None:
    """Whether it never beat or fell silent later."""
    assert attempts_lost() == []
    now = stop_clock(monkeypatch, reconcile)
    Attempt.objects.update(lease_until=now - timedelta(seconds=1), **{field: now - timedelta(seconds=seconds)})
    assert attempts_lost() == [attempt.run_id]
    assert attempts_lost() == []
    attempt.refresh_from_db()
    run = Run.objects.get()
    assert (attempt.state, attempt.end_code, run.state, run.retries) == ("lost", "worker_lost", "queued", 1)
    assert attempt.ended_at is not None
    assert f"gpu-1 was last heard of {words}" in run.reason
    ended = RunEvent.objects.get(kind="attempt")
    assert (ended.actor, ended.data["code"], ended.data["end"]) == ("platform", "worker_lost", "lost")
    for late in (lambda: beat(attempt), lambda: finish(attempt, "finished")):
        with pytest.raises(StaleFence):
            late()


def test_a_beat_that_comes_late_and_first_keeps_the_run(attempt: Attempt) -> None:
    age(attempt, 500, "lease_until")
    assert beat(attempt) == ("run", [])
    assert attempts_lost() == []


def test_a_worker_that_starts_again_gives_back_what_it_had(attempt: Attempt, maker: Maker, gpu1: Node) -> None:
    other = claim(node("gpu-2"), maker.run(state="queued").pk)
    ended = claim(gpu1, maker.run(state="queued").pk)
    finish(ended, "cancelled")
    lost = [LostAttempt(attempt_id=one.pk, fence=one.fence) for one in (attempt, other, ended)]
    wrong = [LostAttempt(attempt_id=attempt.pk, fence=attempt.fence + 1)]
    for named, released in ((wrong, []), (lost, [attempt.run_id]), (lost, [])):
        assert attempts_released(node=gpu1, lost=LostAttempts(attempts=named)) == released
    assert Run.objects.get(pk=attempt.run_id).state == "queued"
    assert Run.objects.get(pk=other.run_id).state == "starting"


def test_the_next_attempt_is_offered_what_stands(attempt: Attempt, gpu1: Node) -> None:
    finish(attempt, "failed", "worker_lost")
    again = claimed(gpu1)
    assert [(offer.step, offer.fence) for offer in again.resume] == [(40, 1), (0, 1)]
    assert (again.attempt.fence, again.attempt.run.state) == (2, "starting")
