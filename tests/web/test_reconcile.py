"""The reconciler against faults of its own, silence of the trainer and lost messages; and the platform's own outages,
which are not its workers', with a database's clock that is set back.
"""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now

from cohort.background import outages, reconcile
from cohort.background.outages import leases_capped, leases_count, pulse, tries_capped
from cohort.nodes.models import Node
from cohort.runs import dispatch
from cohort.runs.models import Attempt, Run, RunEvent, ServiceBeat
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.sealed_run import ingest
from tests.tables import cases
from tests.web.control import age, beat, claim, database_now, finish, fresh, node, queue_at, steps, stop_clock, train
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The reconciler's own, and no memory of runs of other tests."""
    moment = [1000.0]
    monkeypatch.setattr("cohort.background.reconcile.time.monotonic", lambda: moment[0])
    monkeypatch.setattr(dispatch, "_published", {})
    monkeypatch.setattr(reconcile, "_seals_requested", {})
    for queue in ("train", "train.a100.gpu2"):
        take_all(queue)
    return moment


@pytest.fixture
def attempt(maker: Maker, gpu1: Node) -> Attempt:
    maker.run(state="queued")
    return train(claim(gpu1), *steps(1, 3))


def test_one_fault_keeps_no_other_run_waiting(attempt: Attempt, maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    """The lease of an attempt is over that cannot be ended, because its run has been trained to the end already."""
    trained = maker.run(state="sealing")
    times = {"claimed_at": Now() - HOUR, "lease_until": Now() - HOUR}
    impossible = Attempt.objects.create(run=trained, node=node("gpu-0"), fence=1, token_digest="0" * 64, **times)
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    age(attempt, 90, "lease_until")
    with pytest.raises(reconcile.RoundFailed, match="lost attempts"):
        reconcile.reconcile()
    attempt.refresh_from_db()
    assert (attempt.state, fresh(impossible).state) == ("lost", "running")
    failed = [record for record in caplog.records if f"attempt {impossible.pk} failed" in record.message]
    assert [record.exc_info[0].__name__ for record in failed if record.exc_info] == ["IllegalTransition"]  # type: ignore[union-attr]


# ---------------------------------------------------------------------- stalls


@pytest.mark.parametrize(("seconds_per_step", "patience"), [(None, 600), (60, 1200)])
def test_a_run_that_stands_still_is_said_once(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, seconds_per_step: float | None, patience: int
) -> None:
    """After ten minutes, or as long as 20 steps take."""
    Run.objects.update(seconds_per_step=seconds_per_step)
    beat(attempt, done=3)
    Attempt.objects.update(progress_at=stop_clock(monkeypatch, reconcile))
    age(attempt, patience - 1, "progress_at")
    beat(attempt, done=3)
    assert reconcile.stalls_record() == []
    age(attempt, 2, "progress_at")
    assert reconcile.stalls_record() == [attempt.run_id]
    assert reconcile.stalls_record() == []
    run, row = Run.objects.get(), Attempt.objects.get()
    assert (run.stalled_at, run.state) == (row.progress_at, "training"), "an alarm, not an end"
    (event,) = RunEvent.objects.filter(kind="stalled")
    assert "gpu-1 lives. Last seen: training, 3 of 100" in event.message
    beat(attempt, done=3)
    assert Run.objects.get().stalled_at is not None, "the worker lives, and nothing moves"
    beat(attempt, done=4)
    assert Run.objects.get().stalled_at is None
    assert RunEvent.objects.filter(kind="moving").count() == 1


def test_records_are_progress(attempt: Attempt) -> None:
    for step, stalled in ((4, []), (5, [attempt.run_id])):
        age(attempt, 700, "progress_at", "claimed_at")
        if not stalled:
            ingest(attempt, [records.StepMetrics(step=step, metrics={"reward": 0.5}, seconds={"total": 1.0})])
        assert reconcile.stalls_record() == stalled
    ingest(attempt, [records.StepMetrics(step=5, metrics={"reward": 0.5}, seconds={"total": 1.0})])
    assert (Run.objects.get().stalled_at, Run.objects.get().step) == (None, 5)
    age(attempt, 700, "progress_at", "lease_until")
    assert reconcile.stalls_record() == [], "a worker that is silent itself is no stall"


# ---------------------------------------------------------------------- messages


@pytest.fixture
def republished(committed: Any) -> Any:
    def republish() -> list[int]:
        with committed():
            return reconcile.queued_republish()

    return republish


def test_a_message_that_was_lost_is_sent_again(
    maker: Maker, gpu1: Node, clock: list[float], monkeypatch: pytest.MonkeyPatch, republished: Any
) -> None:
    run = maker.run(state="queued")
    assert run.queued_at is not None
    queue_at(monkeypatch, run.queued_at + timedelta(seconds=9))
    assert republished() == [], "its own message is on its way"
    queue_at(monkeypatch, run.queued_at + timedelta(seconds=11))
    assert republished() == [run.pk]
    assert take_all("train") == [[run.pk]]
    for seconds, sent in ((29, []), (2, [run.pk]), (31, [])):  # at last one lies there: the workers are busy
        clock[0] += seconds
        assert republished() == sent
    assert take_all("train") == [[run.pk]]


def test_a_run_queued_before_the_clock_was_set_back_is_told_of(maker: Maker, gpu1: Node, republished: Any) -> None:
    run = maker.run(state="queued")
    Run.objects.update(queued_at=Now() + HOUR)
    assert republished() == [run.pk]


def test_each_message_goes_to_the_queue_of_nodes_that_can(maker: Maker, gpu1: Node, republished: Any) -> None:
    plain, big = maker.run(state="queued"), maker.run(state="queued")
    Run.objects.filter(pk=big.pk).update(node_label="a100", gpus=2)
    Run.objects.update(queued_at=Now() - timedelta(seconds=11))
    assert republished() == [plain.pk], "no node here could take the other"
    node("gpu-2", gpus=2, labels=("a100",))
    assert republished() == [big.pk]
    assert (take_all("train"), take_all("train.a100.gpu2")) == ([[plain.pk]], [[big.pk]])


def test_when_a_node_becomes_free_the_next_run_is_told(maker: Maker, attempt: Attempt, committed: Any) -> None:
    waiting = maker.run(state="queued")
    with committed():
        finish(attempt, "failed", "reward_error")
    assert take_all("train") == [[waiting.pk]]


def in_a_minute() -> datetime:
    return database_now() + timedelta(seconds=60)


class Platform:
    """The platform's parts, one attempt, and the steps of tests/cases/runs/outages.yaml, each by its first word."""

    def __init__(self, attempt: Attempt, maker: Maker) -> None:
        self.attempt, self.maker = attempt, maker

    def away(self, name: str, seconds: float) -> None:
        """This part of the platform is away for so many seconds."""
        ServiceBeat.objects.filter(name=name).update(beat_at=F("beat_at") - timedelta(seconds=seconds))
        self.pass_(name, seconds)

    def pass_(self, name: str, seconds: float) -> None:
        """So many seconds go by, in which it is there."""
        ServiceBeat.objects.filter(name=name).update(grace_until=F("grace_until") - timedelta(seconds=seconds))

    def steady(self) -> None:
        leases_count()
        ServiceBeat.objects.update(grace_until=None)
        pulse()
        assert leases_count()

    def pulse(self) -> None:
        pulse()

    def count(self, counts: bool) -> None:
        assert leases_count() is counts

    def round(self, state: str) -> None:
        reconcile.reconcile()
        assert Attempt.objects.get(pk=self.attempt.pk).state == state

    def beat(self, desired: str) -> None:
        assert beat(self.attempt)[0] == desired

    def silent(self) -> None:
        """Its worker was last heard a while ago."""
        age(self.attempt, 90, "lease_until")
        Attempt.objects.filter(pk=self.attempt.pk).update(heartbeat_at=None)
        Node.objects.update(last_seen_at=Now() - timedelta(minutes=2))

    def lease(self, what: float | str, *_: str) -> None:
        """It ages by so many seconds, or is a minute at most."""
        if isinstance(what, str):
            assert Attempt.objects.get(pk=self.attempt.pk).lease_until <= in_a_minute()
        else:
            age(self.attempt, what, "lease_until", "claimed_at")

    def grace(self, *_: str) -> None:
        """Is a minute at most."""
        assert ServiceBeat.objects.get(name="reconciler").grace_until <= in_a_minute()  # type: ignore[operator]

    def another(self, *_: str) -> None:
        self.maker.run(state="queued")
        self.second = claim(node("gpu-2"))

    def other(self, does: str) -> None:
        if does == "beats":
            beat(self.second)
        else:
            Node.objects.filter(name="gpu-2").update(last_seen_at=Now())


@pytest.mark.parametrize(("steps", "logged"), cases("runs/outages", "steps", "logged"))
def test_whose_leases_end(
    attempt: Attempt,
    maker: Maker,
    steps: list[str | dict[str, Any]],
    logged: int | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_clock(monkeypatch, outages)
    platform = Platform(attempt, maker)
    for step in steps:
        name, *values = step.split() if isinstance(step, str) else [next(iter(step)), *step.values()]
        getattr(platform, name.replace("pass", "pass_"))(*values)
    if logged:
        (message,) = [record.getMessage() for record in caplog.records if record.name == "cohort.background.outages"]
        assert "cohort.server.gunicorn" in message, "why leases do not end is logged once"


def test_the_first_round_of_a_new_platform_may_end_leases() -> None:
    assert leases_count()
    assert leases_count()


AWAY = """
import importlib, os, django
django.setup()
import cohort.settings
from cohort.base.environment import environment
from cohort.background import outages
from django.conf import settings
for os.environ["COHORT_LEASE_SECONDS"] in ("240", "60", "24", "3"):
    environment.cache_clear()
    other = importlib.reload(cohort.settings)
    settings.COHORT_ROUND_SECONDS = other.COHORT_ROUND_SECONDS
    settings.COHORT_PULSE_SECONDS = other.COHORT_PULSE_SECONDS
    importlib.reload(outages)
    print(outages.AWAY.total_seconds(), outages.WEB_AWAY.total_seconds())
"""


def test_what_counts_as_an_outage_is_short_beside_the_lease() -> None:
    """In a process with other settings. About half the lease is left to beat again; a lease of less than 20 s, which is
    for tests, gets what a busy machine can keep."""
    variables = {**os.environ, "COHORT_HEARTBEAT_SECONDS": "1"}
    done = subprocess.run([sys.executable, "-c", AWAY], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["20.0 30.0", "20.0 30.0", "12.0 15.0", "10.0 15.0"]


def test_a_lease_is_brought_back_only_from_where_no_beat_puts_it(attempt: Attempt) -> None:
    """A lease is 60 s here; one of up to two may be of a platform that gave longer ones."""
    beat(attempt)
    before = Attempt.objects.get().lease_until
    assert leases_capped() == 0
    age(attempt, -50, "lease_until")
    assert leases_capped() == 0
    assert Attempt.objects.get().lease_until == before + timedelta(seconds=50)
    age(attempt, -50, "lease_until")
    assert leases_capped() == 1
    assert before <= Attempt.objects.get().lease_until <= in_a_minute()


def test_no_run_waits_longer_than_its_delay(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third try waits 30 s."""
    run, now = maker.run(state="queued"), stop_clock(monkeypatch, outages)
    for seconds, capped in ((30, 0), (3630, 1)):
        Run.objects.update(retries=3, not_before=now + timedelta(seconds=seconds))
        assert tries_capped() == capped
        assert fresh(run).not_before == now + timedelta(seconds=30)
