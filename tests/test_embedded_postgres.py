"""The embedded database server: starts anywhere, after anything, and never outlives its owner."""

import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from cohort.cli.embedded.home import HomeError
from cohort.cli.embedded.postgres import Postgres
from tests.processes import wait_for


@pytest.fixture
def folder(open_folder: Path) -> Path:
    return open_folder


def server(folder: Path) -> Postgres:
    return Postgres(folder / "pg", folder / "pg.log", options=("--fsync=off",))


def answer(postgres: Postgres, query: str) -> object:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def servers_of(folder: Path) -> list[int]:
    rows = [process.info for process in psutil.process_iter(["pid", "cmdline"])]
    return [row["pid"] for row in rows if str(folder / "pg") in (row["cmdline"] or [])]


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
    from cohort.cli.embedded.postgres import Postgres
    postgres = Postgres(Path(sys.argv[1]) / "pg", Path(sys.argv[1]) / "pg.log")
    postgres.start()
    print(postgres.process.pid, flush=True)
    time.sleep(600)
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
@pytest.mark.parametrize("everything", [False, True], ids=["owner", "everything"])
def test_the_server_ends_with_its_owner_and_recovers(folder: Path, everything: bool) -> None:
    """Of an owner that is killed the kernel tells it; killed with it, it leaves a stale file."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        if everything:
            owner.send_signal(signal.SIGSTOP)  # so that it cannot notice
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):  # those that die with the first
                    process.kill()
        owner.kill()
    wait_until_gone(folder)
    assert (folder / "pg" / "postmaster.pid").exists() == everything
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
