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
HOUR = 3600


@pytest.fixture
def attempt(maker: Maker, gpu1: Node) -> Attempt:
    """Of a platform whose first round is long over."""
    maker.run(state="queued")
    return train(claim(gpu1), *steps(1, 3))


@pytest.fixture
def steady(attempt: Attempt) -> Attempt:
    """The same, with web server and reconciler there and no grace."""
    leases_count()
    ServiceBeat.objects.update(grace_until=None)
    pulse()
    assert leases_count()
    return attempt


def pass_by(name: str, seconds: float, *, away: bool = False) -> None:
    """So many seconds go by, in which this part of the platform is there, or away."""
    row, span = ServiceBeat.objects.get(name=name), timedelta(seconds=seconds)
    if away:
        row.beat_at -= span
    if row.grace_until is not None:
        row.grace_until -= span
    row.save()


def silent(attempt: Attempt) -> None:
    """Its worker was last heard a while ago."""
    age(attempt, 90, "lease_until")
    Attempt.objects.update(heartbeat_at=None)
    Node.objects.update(last_seen_at=Now() - timedelta(minutes=2))


def reconciled(attempt: Attempt) -> str:
    reconcile.reconcile()
    attempt.refresh_from_db()
    return str(attempt.state)


def in_a_minute() -> datetime:
    return database_now() + timedelta(seconds=60)


def grace() -> datetime:
    until = ServiceBeat.objects.get(name="reconciler").grace_until
    assert until is not None
    return until


def test_a_first_round_that_finds_attempts_running_gives_them_a_minute(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, outages)
    silent(attempt)
    assert reconciled(attempt) == "running"
    pass_by("reconciler", 59)
    assert not leases_count()
    pass_by("reconciler", 2)
    assert reconciled(attempt) == "lost"


def test_after_its_own_outage_nobody_is_ended_for_a_minute(attempt: Attempt) -> None:
    leases_count()
    pass_by("reconciler", HOUR, away=True)  # and the minute after its very first round over
    silent(attempt)
    assert reconciled(attempt) == "running"
    pass_by("reconciler", 30)
    assert reconciled(attempt) == "running"
    assert beat(attempt)[0] == "run", "the worker is there after all"
    pass_by("reconciler", 31)
    assert reconciled(attempt) == "running"


def test_a_short_pause_is_no_outage_and_a_beat_in_the_future_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is 60 s, a round 5 s; after four of them what is left of the leases may be too short to beat again."""
    stop_clock(monkeypatch, outages)
    assert leases_count(), "the first round of a new platform may end leases"
    for seconds, count in ((19, True), (21, False)):
        pass_by("reconciler", seconds, away=True)
        assert leases_count() is count
    ServiceBeat.objects.update(grace_until=None)
    assert leases_count()
    pass_by("reconciler", -HOUR, away=True)
    assert not leases_count()
    ServiceBeat.objects.update(grace_until=Now() + timedelta(hours=1))
    assert not leases_count()
    assert grace() <= in_a_minute(), "brought back to a minute"


AWAY = """
import importlib, os, django
django.setup()
import cohort.settings
from cohort.environment import environment
from cohort.runs import outages
from django.conf import settings
for os.environ["COHORT_LEASE_SECONDS"] in ("240", "60", "24", "3"):
    environment.cache_clear()
    other = importlib.reload(cohort.settings)
    settings.COHORT_ROUND_SECONDS, settings.COHORT_PULSE_SECONDS = other.COHORT_ROUND_SECONDS, other.COHORT_PULSE_SECONDS
    importlib.reload(outages)
    print(outages.AWAY.total_seconds(), outages.WEB_AWAY.total_seconds())
"""


def test_what_counts_as_an_outage_is_short_beside_the_lease() -> None:
    """In a process with other settings. About half the lease is left to beat again; a lease of less than 20 s, which is
    for tests, gets what a busy machine can keep."""
    variables = {**os.environ, "COHORT_HEARTBEAT_SECONDS": "1"}
    done = subprocess.run([sys.executable, "-c", AWAY], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["20.0 30.0", "20.0 30.0", "12.0 15.0", "10.0 15.0"]


def test_while_the_web_server_is_away_and_a_minute_longer_nobody_is_ended(
    steady: Attempt, caplog: pytest.LogCaptureFixture
) -> None:
    pass_by("web", 31, away=True)
    silent(steady)
    for _ in range(3):
        assert reconciled(steady) == "running"
        pass_by("reconciler", 40)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "cohort.runs.outages"]
    assert "cohort.gunicorn" in message, "why leases do not end is logged once"
    pulse()
    assert reconciled(steady) == "running", "back, and the workers had no time yet"
    pass_by("reconciler", 30)
    assert reconciled(steady) == "lost"


def test_a_clock_that_was_set_back_is_an_outage_of_a_minute_and_no_longer(attempt: Attempt) -> None:
    """By an hour: what was written before lies so far ahead. The worker is gone: when the minute of grace and one lease
    are over, its attempt ends, not an hour later."""
    leases_count()
    pass_by("reconciler", HOUR, away=True)
    leases_count()  # grace has begun
    pulse()
    for name in ("reconciler", "web"):
        pass_by(name, -HOUR, away=True)
    age(attempt, -HOUR, "lease_until", "claimed_at")
    silent(attempt)
    assert not leases_count()
    assert grace() <= in_a_minute()
    reconciled(attempt)
    assert attempt.lease_until <= in_a_minute(), "brought back to one lease from now"
    age(attempt, 61, "lease_until")
    for state in ("running", "lost"):
        pass_by("reconciler", 31)
        pulse()
        assert reconciled(attempt) == state


def test_a_web_server_s_beat_of_before_the_clock_was_set_back_does_not_hide_its_silence(steady: Attempt) -> None:
    pass_by("web", -HOUR, away=True)
    silent(steady)
    assert not leases_count()


@pytest.mark.parametrize("heard", ["beat", "presence"])
def test_a_web_server_without_a_sign_of_life_makes_no_lease_last_for_ever(
    steady: Attempt, maker: Maker, heard: str
) -> None:
    """As one that was started without cohort.gunicorn, where an earlier one left its row: calls of workers arrive."""
    pass_by("web", 24 * HOUR, away=True)
    maker.run(state="queued")
    other = claim(node("gpu-2"))
    silent(steady)
    if heard == "beat":
        beat(other)
    else:
        Node.objects.filter(name="gpu-2").update(last_seen_at=Now())
    assert reconciled(steady) == "lost"


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
    run, now = maker.run(state="queued"), stop_clock(monkeypatch, outages)
    for seconds, capped in ((30, 0), (3630, 1)):
        Run.objects.update(retries=3, not_before=now + timedelta(seconds=seconds))
        assert tries_capped() == capped
        run.refresh_from_db()
        assert run.not_before == now + timedelta(seconds=30)
