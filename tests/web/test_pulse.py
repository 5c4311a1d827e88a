"""The web server's sign of life: from its real processes, past what the reconciler wrote, through an outage."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.db.models.functions import Now
from psycopg.conninfo import make_conninfo

from cohort.background.outages import pulse
from cohort.runs.models import ServiceBeat
from tests.processes import DEADLINE, wait_for

BEATS = """
import sys
import django
django.setup()
from django.conf import settings
from cohort.background import outages
settings.COHORT_PULSE_SECONDS = 0.05
beat = outages.pulse
def counted():
    print("tried", flush=True)
    beat()
outages.pulse = counted
stop = outages.pulse_start()
sys.stdin.read()
stop.set()
"""


def database(**other: str) -> str:
    """The tests' database, as another process is told of it."""
    names = {"user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT", "dbname": "NAME"}
    has = {name: connection.settings_dict[setting] for name, setting in names.items()}
    return make_conninfo(**{**{name: value for name, value in has.items() if value}, **other})


@contextmanager
def process(words: list[str], log: Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out, env={**os.environ, **variables})
    try:
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=DEADLINE)


@pytest.mark.django_db
def test_a_beat_leaves_the_grace_that_the_reconciler_gave() -> None:
    times = {"beat_at": Now() - timedelta(minutes=5), "grace_until": Now() + timedelta(minutes=1)}
    ServiceBeat.objects.create(name="web", **times)
    before = ServiceBeat.objects.get()
    pulse()
    after = ServiceBeat.objects.get()
    assert after.beat_at - before.beat_at >= timedelta(minutes=5)
    assert after.grace_until == before.grace_until


@pytest.mark.django_db(transaction=True)
def test_gunicorn_beats_from_the_start_and_ends_when_told(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "gunicorn",
        "--config",
        "python:cohort.server.gunicorn",
        "cohort.server.wsgi:application",
    ]
    variables = {"COHORT_DATABASE_URL": database(), "COHORT_LISTEN": "127.0.0.1:0", "COHORT_WEB_WORKERS": "1"}
    log = tmp_path / "web.log"
    with process(words, log, **variables) as web:
        wait_for(ServiceBeat.objects.filter(name="web").exists, log.read_text)
        web.terminate()
        assert web.wait(DEADLINE) == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def role(transactional_db: None) -> Iterator[str]:
    """Somebody who may write beats, and can be shut out of the database."""
    name = f"pulse_of_a_test_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pulse'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON runs_servicebeat TO {name}")
        yield name
        cursor.execute(f"DROP OWNED BY {name}")
        cursor.execute(f"DROP ROLE {name}")


def test_an_outage_is_told_once_and_outlived(role: str, tmp_path: Path) -> None:
    log = tmp_path / "pulse.log"

    def until(holds: Callable[[], bool]) -> None:
        wait_for(holds, log.read_text)

    def tried() -> int:
        return log.read_text().count("tried")

    def no_connection_is_kept() -> bool:
        """Of a connection that was closed, a busy server's process may end only later."""
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state = 'idle'", [role])
        return bool(cursor.fetchone()[0] <= 1)

    url = database(user=role, password="pulse")
    with process([sys.executable, "-c", BEATS], log, COHORT_DATABASE_URL=url), connection.cursor() as cursor:
        until(ServiceBeat.objects.exists)
        cursor.execute(f"ALTER ROLE {role} NOLOGIN")
        until(lambda: "does not answer" in log.read_text())
        ServiceBeat.objects.all().delete()
        shut_out = tried()
        until(lambda: tried() > shut_out + 5)
        assert not ServiceBeat.objects.exists()
        cursor.execute(f"ALTER ROLE {role} LOGIN")
        until(ServiceBeat.objects.exists)
        until(lambda: "answers again" in log.read_text())
        until(no_connection_is_kept)
    assert [log.read_text().count(words) for words in ("does not answer", "answers again")] == [1, 1]
