"""The embedded database server: starts anywhere, after anything, and never outlives its owner."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from cohort.embedded.home import HomeError
from cohort.embedded.postgres import Postgres
from tests.processes import wait_for

QUICK = ("--fsync=off",)


@pytest.fixture
def folder(open_folder: Path) -> Path:
    return open_folder


def server(folder: Path) -> Postgres:
    return Postgres(folder / "pg", folder / "pg.log", options=QUICK)


def answer(postgres: Postgres, query: str) -> object:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def servers_of(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if str(folder / "pg") in (process.info["cmdline"] or []):
            found.append(process.info["pid"])
    return found


def wait_until_gone(folder: Path) -> None:
    wait_for(lambda: not servers_of(folder), lambda: f"still running: {servers_of(folder)}")


def test_data_survives_a_restart_and_nothing_runs_after_stop(folder: Path) -> None:
    """Also where the stale process id of a crash belongs to somebody else by now: they are not ended."""
    postgres = server(folder)
    postgres.start()
    assert answer(postgres, "SHOW listen_addresses") == ""
    running = (folder / "pg" / "postmaster.pid").read_text()
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE kept (number int); INSERT INTO kept VALUES (42)")
    postgres.stop()
    postgres.stop()  # a second time does nothing
    assert servers_of(folder) == []
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            (folder / "pg" / "postmaster.pid").write_text(str(bystander.pid) + running[running.index("\n") :])
            postgres.start()
            assert answer(postgres, "SELECT number FROM kept") == 42
            postgres.stop()
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize(
    "name", ["a b, c", pytest.param("x" * 120, marks=pytest.mark.slow, id="longer than a socket's")]
)
def test_any_folder_name_will_do(open_folder: Path, name: str) -> None:
    folder = open_folder / name
    folder.mkdir()
    postgres = server(folder)
    postgres.start()
    sockets = postgres.sockets
    assert answer(postgres, "SELECT 1") == 1
    assert sockets.stat().st_mode & 0o077 == 0, "others could connect: the server trusts whoever reaches its socket"
    postgres.stop()
    assert sockets == folder / "pg" or not sockets.exists()


OWNER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from cohort.embedded.postgres import Postgres
    postgres = Postgres(Path(sys.argv[1]) / "pg", Path(sys.argv[1]) / "pg.log")
    postgres.start()
    print(postgres.process.pid, flush=True)
    time.sleep(600)
    """
)


@pytest.fixture
def owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that started a server, and the server's process id."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    yield process, pid
    process.kill()
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_the_server_ends_when_its_owner_is_killed(folder: Path, owner: tuple[subprocess.Popen[str], int]) -> None:
    owner[0].kill()
    wait_until_gone(folder)
    postgres = server(folder)
    postgres.start()
    postgres.stop()


def test_it_recovers_when_owner_and_server_are_killed(folder: Path, owner: tuple[subprocess.Popen[str], int]) -> None:
    process, pid = owner
    everything = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    process.send_signal(signal.SIGSTOP)  # so that it cannot notice
    for each in everything:
        with suppress(ProcessLookupError):  # those that die with the first
            os.kill(each.pid, signal.SIGKILL)
    process.kill()
    wait_until_gone(folder)
    assert (folder / "pg" / "postmaster.pid").exists(), "the stale file this test is about"
    postgres = server(folder)
    postgres.start()
    assert answer(postgres, "SELECT 1") == 1
    postgres.stop()


def test_a_half_made_database_is_made_again_and_one_that_cannot_start_is_refused(folder: Path) -> None:
    (folder / "pg.new").mkdir()
    (folder / "pg.new" / "left over").write_text("")
    postgres = server(folder)
    postgres.start()
    assert answer(postgres, "SELECT 1") == 1
    postgres.stop()
    assert not (folder / "pg.new").exists()
    with open(folder / "pg" / "postgresql.conf", "a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(HomeError, match="no_such_setting"):
        postgres.start()
    (folder / "pg" / "PG_VERSION").write_text("15\n")
    with pytest.raises(HomeError, match="PostgreSQL 15, and this is 18"):
        postgres.start()
    assert servers_of(folder) == []
