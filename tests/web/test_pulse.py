"""The web server's sign of life: from its real processes, past what the reconciler wrote, through an outage."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from psycopg.conninfo import make_conninfo

from cohort.background.outages import pulse
from cohort.runs.models import ServiceBeat
from tests.processes import DEADLINE, wait_for

WEB = [
    *(sys.executable, "-m", "gunicorn"),
    *("--config", "python:cohort.server.gunicorn", "cohort.server.wsgi:application"),
]
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
stop = outages.pulse_start(sys.argv[1])
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


class Web:
    """A web server with one process on the tests' database."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.port = int(
            wait_for(lambda: re.search(r"Listening at: http://127.0.0.1:(\d+)", log.read_text()), log.read_text)[1]
        )
        self.open: list[socket.socket] = []

    def send(self, *lines: str, body: bytes = b"") -> socket.socket:
        """Send what need not be whole."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)
        client.sendall("\r\n".join([lines[0] + " HTTP/1.1", "Host: localhost", *lines[1:]]).encode() + body)
        self.open.append(client)
        return client

    def status(self, *lines: str, body: bytes = b"") -> int:
        client = self.send(*lines, *([f"Content-Length: {len(body)}"] if body else []), "", "", body=body)
        return int(client.recv(65536).split()[1])


@contextmanager
def web(tmp_path: Path, **variables: str) -> Iterator[tuple[Web, "subprocess.Popen[bytes]"]]:
    log = tmp_path / "web.log"
    given = {"COHORT_DATABASE_URL": database(), "COHORT_LISTEN": "127.0.0.1:0", "COHORT_WEB_WORKERS": "1"}
    with process(WEB, log, **{**given, **variables}) as running:
        wait_for(lambda: "Listening at" in log.read_text(), log.read_text, running)
        site = Web(log)
        yield site, running
        for client in site.open:
            client.close()


def beat_again(site: Web) -> None:
    """Wait for a beat from now on."""
    ServiceBeat.objects.all().delete()
    wait_for(ServiceBeat.objects.filter(name="web").exists, site.log.read_text)


@pytest.mark.django_db(transaction=True)
def test_the_web_server_beats_from_the_start_and_ends_when_told(tmp_path: Path) -> None:
    with web(tmp_path) as (site, running):
        wait_for(ServiceBeat.objects.filter(name="web").exists, site.log.read_text)
        idle = site.send("GET /healthz", "", "")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        running.terminate()
        assert running.wait(DEADLINE) == 0
    assert "Traceback" not in site.log.read_text()


@pytest.mark.django_db(transaction=True)
def test_slow_clients_keep_nobody_from_being_answered(tmp_path: Path) -> None:
    """Neither people nor workers; and the web server's own call arrives, which means that those of workers do."""
    batch = ("POST /api/worker/v1/attempts/1/records", "Authorization: Bearer x", "X-Cohort-Fence: 1")
    with web(tmp_path, COHORT_LEASE_SECONDS="20") as (site, _):
        for _ in range(64):
            site.send("POST /login/", "Content-Length: 1000", "", "", body=b"user")
            site.send(*batch, "Content-Length: 1000", "", "", body=b"x")
            site.send("GET /login/", "Accept: ")
        beat_again(site)
        for path in ("/healthz", "/login/", "/static/cohort/app.css"):
            assert site.status(f"GET {path}") == 200
        assert site.status("POST /api/worker/v1/node", "Authorization: Bearer x", body=b"{}") == 401
        assert site.status(*batch, body=b"x") == 401
        assert site.status("POST /login/", f"Content-Length: {2**20 + 1}") == 413
        assert site.status(*batch, f"Content-Length: {2**25 + 1}") == 413
        assert site.status("POST /login/", "Transfer-Encoding: chunked") == 411


@contextmanager
def locked(table: str) -> Iterator[Callable[[int], None]]:
    """While the block runs nobody reads the table; what it is given waits until so many statements wait for it."""

    def wait(count: int) -> None:
        def enough() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", [table])
                return bool(cursor.fetchone()[0] >= count)

        wait_for(enough, f"{count} statements wait for {table}")

    with psycopg.connect(database()) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield wait
        other.rollback()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_pages_cannot_hold_up_workers_and_a_worker_api_that_is_held_up_is_no_sign_of_life(tmp_path: Path) -> None:
    threads, call = settings.COHORT_WEB_THREADS, ("POST /api/worker/v1/node", "Authorization: Bearer x")
    with web(tmp_path, COHORT_LEASE_SECONDS="20") as (site, _):
        with locked("django_session") as wait:
            for _ in range(2 * threads["pages"]):
                site.send("GET /", "Cookie: sessionid=0123456789abcdefghijklmnopqrstuv", "", "")
            wait(threads["pages"])
            assert site.status(*call, body=b"{}") == 401
            beat_again(site)
        with locked("nodes_node") as wait:
            for _ in range(threads["workers"]):
                site.send(
                    "POST /api/worker/v1/node", "Authorization: Bearer x", "Content-Length: 2", "", "", body=b"{}"
                )
            wait(threads["workers"])
            wait_for(lambda: "no sign of life" in site.log.read_text(), site.log.read_text)
            assert site.status("GET /healthz") == 200
        beat_again(site)
        wait_for(lambda: "signs of life again" in site.log.read_text(), site.log.read_text)


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
    elsewhere = web(tmp_path, COHORT_PULSE_URL="http://127.0.0.1:1")  # it has no sign of life itself
    with elsewhere as (site, _), connection.cursor() as cursor:
        words = [sys.executable, "-c", BEATS, f"http://127.0.0.1:{site.port}"]
        with process(words, log, COHORT_DATABASE_URL=url):
            until(ServiceBeat.objects.exists)
            cursor.execute(f"ALTER ROLE {role} NOLOGIN")
            until(lambda: "database does not answer" in log.read_text())
            ServiceBeat.objects.all().delete()
            shut_out = tried()
            until(lambda: tried() > shut_out + 5)
            assert not ServiceBeat.objects.exists()
            cursor.execute(f"ALTER ROLE {role} LOGIN")
            until(ServiceBeat.objects.exists)
            until(lambda: "signs of life again" in log.read_text())
            until(no_connection_is_kept)
    assert [log.read_text().count(words) for words in ("no sign of life", "signs of life again")] == [1, 1]
    assert "127.0.0.1:1 cannot be reached" in site.log.read_text()
