"""Ends of attempts by HTTP: what a worker finishes, what a node gives back, and what the platform ends itself."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.governance.models import Record
from cohort.governance.tasks import seal
from cohort.runs.models import Attempt, Run, RunEvent, RunState
from cohort.runs.nodes import node_create
from cohort.runs.reconcile import attempts_lost, queued_republish, seals_republish, span
from cohort.runs.services import run_cancel, run_sealed
from tests.web.control import queue_at
from tests.web.worker_calls import AttemptCaller, Caller, node, refused, run, worker
from tests.worker.making import NODE, WHOLE_RUN, envelopes, outcome, packed, phase, step
from tests.worker.queues import take_all

__all__ = ["node", "run", "worker"]  # fixtures

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------------- finish


def test_finished_waits_for_all_records_and_then_for_its_record(worker: AttemptCaller, run: Run) -> None:
    batch = envelopes(WHOLE_RUN)
    worker.records(packed(batch[:16]))
    assert refused(worker.finish("finished", last_seq=17)) == (409, "records_missing")
    worker.records(packed(batch))
    assert worker.finish("finished", last_seq=17).status_code == 204
    run.refresh_from_db()
    assert (run.state, run.ended_at) == (RunState.SEALING, None)
    assert worker.finish("finished", last_seq=17).status_code == 204  # its answer was lost
    assert refused(worker.finish("failed", last_seq=17)) == (409, "stale_fence")
    assert refused(worker.beat()) == (409, "stale_fence")
    assert RunEvent.objects.filter(run=run, data__to="sealing").count() == 1


def test_success_without_an_outcome_is_no_success(worker: AttemptCaller, run: Run) -> None:
    worker.records(packed(envelopes([phase("training"), outcome("failed")])))
    worker.finish("finished", last_seq=2)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "no_outcome")


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("failed", RunState.FAILED),
        ("cancelled", RunState.CANCELLED),
    ],
)
def test_other_ends_carry_their_reason(worker: AttemptCaller, run: Run, end: str, state: RunState) -> None:
    told = {"code": "trainer_died", "message": "killed\x00", "log_tail": "last\x00line"}
    assert worker.finish(end, last_seq=0, **told).status_code == 204
    run.refresh_from_db()
    assert (run.state, run.reason) == (state, "killed�")
    assert run.log_tail == "last�line"
    assert run.error_code == ("trainer_died" if state == RunState.FAILED else "")
    assert Attempt.objects.get().state == end
    assert run.ended_at is not None


def test_a_preempted_attempt_sends_its_run_back_to_the_queue(worker: AttemptCaller, run: Run) -> None:
    told = {"code": "worker_shutdown", "message": "The worker is being stopped"}
    assert worker.finish("preempted", last_seq=0, **told).status_code == 204
    run.refresh_from_db()
    assert (run.state, run.retries, run.not_before, run.ended_at) == (RunState.QUEUED, 0, None, None)
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.end_code) == ("preempted", "worker_shutdown")


def test_the_canceller_s_reason_stays(worker: AttemptCaller, run: Run, alice: User) -> None:
    run_cancel(run=run, actor=alice, reason="wrong data")
    worker.records(packed(envelopes([phase("training")])))  # the trainer had not heard of it yet
    worker.finish("cancelled", last_seq=1)
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.CANCELLED, "Stopped by alice before its first step: wrong data")


def test_a_cancel_without_a_reason_says_by_whom_and_when(worker: AttemptCaller, run: Run, alice: User) -> None:
    worker.records(packed(envelopes([phase("training"), step(1), step(2)])))
    run_cancel(run=run, actor=alice)
    worker.finish("cancelled", last_seq=3, message="Stopped after 2 steps: asked to stop by SIGTERM")
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.CANCELLED, "Stopped by alice after 2 steps")


def test_the_last_lines_stay_when_the_record_is_made(worker: AttemptCaller, run: Run) -> None:
    worker.records(packed(envelopes(WHOLE_RUN)))
    worker.finish("finished", last_seq=17, log_tail="signal in 2 of 2 groups")
    run_sealed(run=run)
    run.refresh_from_db()
    assert (run.state, run.log_tail) == (RunState.SUCCEEDED, "signal in 2 of 2 groups")


# ---------------------------------------------------------------------- a worker that found its attempts dead


def test_a_node_that_was_restarted_gives_its_dead_attempts_back(worker: AttemptCaller, node: Caller, run: Run) -> None:
    attempt = Attempt.objects.get()
    told = {"attempts": [{"attempt_id": attempt.pk, "fence": 1}, {"attempt_id": 10**6, "fence": 1}]}
    assert node.post("node/lost", told).status_code == 204
    run.refresh_from_db()
    attempt.refresh_from_db()
    assert (run.state, attempt.state, attempt.end_code) == (RunState.QUEUED, "lost", "worker_lost")
    assert refused(worker.beat()) == (409, "stale_fence")
    assert node.post("node/lost", told).status_code == 204  # its answer was lost


def test_another_node_cannot_give_them_back(worker: AttemptCaller, run: Run) -> None:
    attempt = Attempt.objects.get()
    other = Caller(node_create(name="gpu-2")[1])
    told = {"attempts": [{"attempt_id": attempt.pk, "fence": 1}]}
    assert other.post("node/lost", told).status_code == 204
    assert other.post("node/lost", {"attempts": [{"attempt_id": attempt.pk}]}).status_code == 422
    assert refused(worker.post("node/lost", told)) == (401, "unknown_token"), "an attempt is not a node"
    attempt.refresh_from_db()
    assert attempt.state == "running"


# ---------------------------------------------------------------------- reconciler


def test_a_silent_worker_is_lost_and_its_run_waits_again(worker: AttemptCaller, run: Run) -> None:
    assert attempts_lost() == []
    Attempt.objects.update(heartbeat_at=Now() - timedelta(seconds=75), lease_until=Now() - timedelta(seconds=15))
    assert attempts_lost() == [run.pk]
    assert attempts_lost() == []
    run.refresh_from_db()
    assert (run.state, run.retries) == (RunState.QUEUED, 1)
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.end_code) == ("lost", "worker_lost")
    assert attempt.ended_at is not None
    assert attempt.heartbeat_at is not None
    told = re.search(r"gpu-1 was last heard of (\d+) seconds ago", run.reason)
    assert told is not None
    assert 75 <= int(told[1]) <= (attempt.ended_at - attempt.heartbeat_at).total_seconds()
    assert refused(worker.beat()) == (409, "stale_fence")
    assert refused(worker.finish("finished", last_seq=0)) == (409, "stale_fence")


def test_a_worker_that_never_beat_is_lost_too(worker: AttemptCaller, run: Run) -> None:
    Attempt.objects.update(claimed_at=Now() - timedelta(minutes=5), lease_until=Now() - timedelta(minutes=4))
    assert attempts_lost() == [run.pk]
    run.refresh_from_db()
    assert "last heard of 5 minutes ago" in run.reason


def test_a_queued_run_is_offered_again_once_the_queue_is_empty(
    run: Run, node: Caller, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    take_all("train")
    clock = [0.0]
    monkeypatch.setattr("cohort.runs.reconcile.time.monotonic", lambda: clock[0])
    node.post("node", NODE.model_dump(mode="json"))  # one that could take it is here
    assert run.queued_at is not None
    with django_capture_on_commit_callbacks():
        queue_at(monkeypatch, run.queued_at + timedelta(seconds=1))
        assert queued_republish() == []  # queued a moment ago
        queue_at(monkeypatch, run.queued_at + timedelta(seconds=31))
        with django_capture_on_commit_callbacks(execute=True) as sent:
            assert queued_republish() == [run.pk]
        assert len(sent) == 1
        clock[0] = 31.0
        assert queued_republish() == []  # that message still lies there: workers are busy
        assert take_all("train") == [[run.pk]]
        assert queued_republish() == [run.pk]


def test_an_ended_run_without_a_record_is_sealed_later(worker: AttemptCaller, run: Run) -> None:
    worker.finish("failed", last_seq=0)
    assert seals_republish() == []
    Attempt.objects.update(ended_at=Now() - timedelta(seconds=61))
    assert seals_republish() == [run.pk]


def test_a_run_whose_record_it_was_not_told_of_is_asked_for_too(worker: AttemptCaller, run: Run) -> None:
    """As when the platform was killed between the two."""
    worker.records(packed(envelopes(WHOLE_RUN)))
    worker.finish("finished", last_seq=17)
    Attempt.objects.update(ended_at=Now() - timedelta(seconds=61))
    run.refresh_from_db(fields=["fence", "ends"])
    Record.objects.create(
        run=run,
        end=run.ends,
        fence=run.fence,
        schema_version="1",
        document="{}",
        seal="cd" * 32,
        record_root="ab" * 32,
        fields_stated=1,
        fields_total=1,
        sealed_at=Now(),
    )
    assert seals_republish() == [run.pk]
    seal(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert seals_republish() == []


def test_a_seal_that_fails_is_asked_for_more_and_more_rarely(
    worker: AttemptCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.finish("failed", last_seq=0)
    Attempt.objects.update(ended_at=Now() - timedelta(hours=1))
    clock = [0.0]
    monkeypatch.setattr("cohort.runs.reconcile.time.monotonic", lambda: clock[0])
    asked = []
    for half_minutes in range(8 * 120):
        clock[0] = 30.0 * half_minutes
        if seals_republish():
            asked.append(clock[0] / 60)
    assert asked == [0, 2, 6, 14, 30, 62, 122, 182, 242, 302, 362, 422]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7199, "119 minutes"), (7200, "2 hours")],
)
def test_spans_in_words(seconds: int, words: str) -> None:
    assert span(timedelta(seconds=seconds)) == words
