"""The platform's own outages, which are not its workers', and a database's clock that is set back."""

import os
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from django.db.models.functions import Now

from cohort.runs import outages, reconcile
from cohort.runs.models import Attempt, Node, Run, ServiceBeat
from cohort.runs.outages import leases_capped, leases_count, tries_capped
from cohort.runs.pulse import pulse
from tests.web.control import age, beat, claim, database_now, gpu1, node, steps, stop_clock, train
from tests.web.run_rows import Maker

__all__ = ["gpu1"]  # fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(maker: Maker, gpu1: Node) -> Attempt:
    maker.run(state="queued")
    return train(claim(gpu1), *steps(1, 3))


def move(name: str, seconds: float) -> None:
    """This part of the platform is away for so many seconds."""
    found = ServiceBeat.objects.get(name=name)
    ServiceBeat.objects.filter(name=name).update(beat_at=found.beat_at - timedelta(seconds=seconds))
    pass_by(name, seconds)


def pass_by(name: str, seconds: float) -> None:
    """So many seconds go by, in which it is there."""
    found = ServiceBeat.objects.get(name=name)
    if found.grace_until is not None:
        ServiceBeat.objects.filter(name=name).update(grace_until=found.grace_until - timedelta(seconds=seconds))


def silent(attempt: Attempt) -> None:
    """Its worker was last heard a while ago."""
    age(attempt, 90, "lease_until")
    Attempt.objects.update(heartbeat_at=None)
    Node.objects.update(last_seen_at=Now() - timedelta(minutes=2))


def test_the_first_round_of_a_new_platform_may_end_leases(db: None) -> None:
    assert leases_count()
    assert leases_count()


def test_a_first_round_that_finds_attempts_running_gives_them_a_minute(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, outages)
    silent(attempt)
    reconcile.reconcile()
    attempt.refresh_from_db()
    assert attempt.state == "running"
    pass_by("reconciler", 59)
    assert not leases_count()
    pass_by("reconciler", 2)
    reconcile.reconcile()
    attempt.refresh_from_db()
    assert attempt.state == "lost"


def test_after_its_own_outage_nobody_is_ended_for_a_minute(attempt: Attempt) -> None:
    leases_count()
    move("reconciler", 3600)  # away, and the minute after its very first round over
    silent(attempt)
    reconcile.reconcile()
    assert Attempt.objects.get().state == "running"
    pass_by("reconciler", 30)
    reconcile.reconcile()
    assert Attempt.objects.get().state == "running"
    assert beat(attempt)[0] == "run", "the worker is there after all"
    pass_by("reconciler", 31)
    reconcile.reconcile()
    assert Attempt.objects.get().state == "running"


def test_a_short_pause_is_no_outage(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is 60 s, a round 5 s; after four of them what is left of the leases may be too short to beat again."""
    stop_clock(monkeypatch, outages)
    leases_count()
    move("reconciler", 19)
    assert leases_count()
    move("reconciler", 21)
    assert not leases_count()


def test_what_counts_as_an_outage_is_short_beside_the_lease() -> None:
    """In a process with other settings. About half the lease is left to beat again; a lease of less than 20 s, which is
    for tests, gets what a busy machine can keep."""
    code = (
        "import django; django.setup(); from cohort.runs import outages as o;"
        "print(o.AWAY.total_seconds(), o.WEB_AWAY.total_seconds())"
    )
    for lease, away in ((240, "20.0 30.0"), (60, "20.0 30.0"), (24, "12.0 15.0"), (3, "10.0 15.0")):
        told = {**os.environ, "COHORT_LEASE_SECONDS": str(lease), "COHORT_HEARTBEAT_SECONDS": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == away


def test_while_the_web_server_is_away_and_a_minute_longer_nobody_is_ended(attempt: Attempt) -> None:
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    pulse()
    assert leases_count()
    move("web", 31)
    silent(attempt)
    for _ in range(3):
        reconcile.reconcile()
        pass_by("reconciler", 40)
    assert Attempt.objects.get().state == "running"
    pulse()
    reconcile.reconcile()
    assert Attempt.objects.get().state == "running", "back, and the workers had no time yet"
    pass_by("reconciler", 30)
    reconcile.reconcile()
    assert Attempt.objects.get().state == "lost"


def ahead(attempt: Attempt) -> None:
    """As after the database's clock was set back by an hour: what it wrote before lies so far ahead."""
    for row in ServiceBeat.objects.all():
        move(row.name, -3600)
    age(attempt, -3600, "lease_until", "claimed_at")


def test_a_clock_that_was_set_back_is_an_outage_of_a_minute_and_no_longer(attempt: Attempt) -> None:
    """The worker is gone: when the minute of grace and one lease are over, its attempt ends, not an hour later."""
    leases_count()
    move("reconciler", 3600)
    leases_count()  # grace has begun
    pulse()
    ahead(attempt)
    silent(attempt)
    assert not leases_count()
    assert ServiceBeat.objects.get(name="reconciler").grace_until <= in_a_minute()  # type: ignore[operator]
    reconcile.reconcile()
    lease = Attempt.objects.get().lease_until
    assert lease <= in_a_minute(), "brought back to one lease from now"
    age(attempt, 61, "lease_until")
    for state in ("running", "lost"):
        pass_by("reconciler", 31)
        pulse()
        reconcile.reconcile()
        assert Attempt.objects.get().state == state


def test_the_reconciler_s_own_beat_in_the_future_is_an_outage(db: None) -> None:
    leases_count()
    assert leases_count()
    move("reconciler", -3600)
    assert not leases_count()


def test_grace_that_lies_far_ahead_is_brought_back_to_a_minute(db: None) -> None:
    leases_count()
    ServiceBeat.objects.update(grace_until=Now() + timedelta(hours=1))
    assert not leases_count()
    assert ServiceBeat.objects.get().grace_until <= in_a_minute()  # type: ignore[operator]


def test_a_web_server_s_beat_of_before_the_clock_was_set_back_does_not_hide_its_silence(attempt: Attempt) -> None:
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    pulse()
    assert leases_count()
    move("web", -3600)
    silent(attempt)
    assert not leases_count()


@pytest.mark.parametrize("heard", ["beat", "presence"])
def test_a_web_server_without_a_sign_of_life_makes_no_lease_last_for_ever(
    attempt: Attempt, maker: Maker, heard: str
) -> None:
    """As one that was started without cohort.gunicorn, where an earlier one left its row: calls of workers arrive."""
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    pulse()
    move("web", 86400)
    maker.run(state="queued")
    other = claim(node("gpu-2"))
    silent(attempt)
    if heard == "beat":
        beat(other)
    else:
        Node.objects.filter(name="gpu-2").update(last_seen_at=Now())
    reconcile.reconcile()
    attempt.refresh_from_db()
    assert attempt.state == "lost"


def test_why_leases_do_not_end_is_logged_once(attempt: Attempt, caplog: pytest.LogCaptureFixture) -> None:
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    pulse()
    move("web", 31)
    silent(attempt)
    for _ in range(3):
        assert not leases_count()
    said = [record.getMessage() for record in caplog.records if record.name == "cohort.runs.outages"]
    assert len(said) == 1
    assert "the web server gives no sign of life" in said[0]
    assert "cohort.gunicorn" in said[0]


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


def test_no_run_waits_longer_for_its_next_try_than_that_try_s_delay(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third try waits 30 s."""
    run = maker.run(state="queued")
    now = stop_clock(monkeypatch, outages)
    Run.objects.update(retries=3, not_before=now + timedelta(seconds=30))
    assert tries_capped() == 0
    Run.objects.update(not_before=now + timedelta(seconds=3630))
    reconcile.reconcile()
    run.refresh_from_db()
    assert run.not_before == now + timedelta(seconds=30)


def in_a_minute() -> datetime:
    return database_now() + timedelta(seconds=60)
