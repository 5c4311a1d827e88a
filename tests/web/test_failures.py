"""What becomes of a run whose attempt ended: by cause, by how often, by what it came to."""

from datetime import timedelta
from typing import Any

import pytest

from cohort.background import reconcile
from cohort.background.reconcile import attempts_lost, queued_republish
from cohort.nodes.leases import StaleFence
from cohort.nodes.models import Node
from cohort.runs.models import Attempt, Run, RunEvent
from cohort.runs.retry import AUTOMATIC, Again, End, decide, explain
from grpo_core import errors
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web.control import (
    age,
    beat,
    checkpoint,
    claim,
    finish,
    let_pass,
    queue_at,
    resumed,
    steps,
    stop_clock,
    train,
)
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="queued")


@pytest.fixture
def attempt(run: Run, gpu1: Node) -> Attempt:
    return train(claim(gpu1), checkpoint(0), *steps(1, 40), checkpoint(40))


@pytest.mark.parametrize(
    ("end", "code", "follows"),
    [
        ("failed", "trainer_killed", ("queued", "trainer_killed", 1)),
        ("failed", "out_of_memory", ("failed", "out_of_memory", 0)),
        ("preempted", "worker_shutdown", ("queued", "", 0)),
        ("preempted", "drained", ("queued", "", 0)),
    ],
)
def test_a_run_goes_on_or_is_recorded(attempt: Attempt, end: str, code: str, follows: Any, committed: Any) -> None:
    """A run that continues is published at once and has no record yet; one that ended is asked a record for."""
    queues = ("train", "platform.seal")
    for queue in queues:
        take_all(queue)
    with committed():
        run = finish(attempt, end, code, "That is why")
    goes_on = run.state == "queued"
    assert [[run.pk] in take_all(queue) for queue in queues] == [goes_on, not goes_on]
    assert (run.state, run.error_code, run.retries) == follows
    assert (run.barren, run.not_before) == (0, None)
    assert run.reason.startswith("That is why")
    assert ("step 40" in run.reason) == goes_on


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
    attempt: Attempt, gpu1: Node, monkeypatch: pytest.MonkeyPatch, committed: Any
) -> None:
    finish(attempt, "failed", "nccl_error")
    take_all("train")
    with committed():
        run = finish(train(claim(gpu1), resumed(40), *steps(41, 42)), "failed", "nccl_error")
    assert take_all("train") == []
    assert run.not_before is not None
    for early, published in ((1, []), (0, [run.pk])):
        queue_at(monkeypatch, run.not_before - timedelta(seconds=early))
        with committed():
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
    assert f"gpu-1 sent its last heartbeat {words}" in run.reason
    ended = RunEvent.objects.get(kind="attempt")
    assert (ended.actor, ended.data["code"], ended.data["end"]) == ("platform", "worker_lost", "lost")
    for late in (lambda: beat(attempt), lambda: finish(attempt, "finished")):
        with pytest.raises(StaleFence):
            late()


def test_a_beat_that_comes_late_and_first_keeps_the_run(attempt: Attempt) -> None:
    age(attempt, 500, "lease_until")
    assert beat(attempt) == ("run", [])
    assert attempts_lost() == []


AGAIN = {"worker_lost", "platform_unreachable", "not_answered", "worker_error", "trainer_killed", "node_revoked"}
AGAIN |= {"trainer_crashed", "interrupted", "device_error", "nccl_error"}


def codes_of(root: type[errors.GrpoError]) -> set[str]:
    return {root.code}.union(*(codes_of(child) for child in root.__subclasses__()))


@pytest.mark.parametrize(("before", "follows"), cases("runs/retries", "before", "follows"))
def test_what_follows_a_failure(before: dict[str, Any], follows: dict[str, Any]) -> None:
    """Tried again after `seconds` as the `number`th try, or ended; `words` is what the run then says."""
    decision = decide(**before)
    outcome = {"barren": decision.barren, "words": explain(decision, message="Lost", place="step 40")}
    if isinstance(decision, Again):
        outcome |= {"seconds": decision.delay.total_seconds(), "number": decision.number}
    assert outcome == follows


def test_only_causes_that_may_not_come_again_are_tried_again() -> None:
    """The list is written out: a new error class that is tried again must be put into it."""
    assert set(AUTOMATIC) == AGAIN
    for code in codes_of(errors.GrpoError) | {"no_outcome", "trainer_died", "checkpoint_missing", "", "x"}:
        decision = decide(code=code, retries=0, barren=0, advanced=True)
        assert isinstance(decision, Again) == (code in AGAIN), code


@pytest.mark.parametrize(("message", "words"), [("Lost!", "Lost! Why."), (" Lost ", "Lost. Why."), ("", "Why.")])
def test_sentences_are_joined_by_one_full_stop(message: str, words: str) -> None:
    assert explain(End("Why.", 3), message=message, place="") == words
