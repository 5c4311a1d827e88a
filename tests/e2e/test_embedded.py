"""`cohort up` and `cohort demo` as a newcomer runs them: start, serve, be stopped, leave nothing behind."""

import re
import signal
import socket
from pathlib import Path

import pytest
from psutil import Process

from tests.processes import DEADLINE, answers, belonging_to, cohort, people, up


@pytest.fixture
def home(cohort_home: Path) -> Path:
    return cohort_home


@pytest.mark.slow
def test_nodes_are_made_and_revoked_and_a_revoked_worker_leaves_the_rest_running(home: Path) -> None:
    with up(home) as (started, address):
        assert started.find("(cohort user NAME)"), "nobody can log in yet, and it says how to change that"
        token = cohort("node", "gpu-1", "--home", str(home)).stdout
        assert len(token.strip()) > 30
        assert cohort("node", "gpu-1", "--home", str(home)).returncode == 1, "it exists"
        assert cohort("node", "gpu-1", "--revoke", "--home", str(home)).returncode == 0
        assert cohort("node", "gpu-1", "--revoke", "--home", str(home)).returncode == 1
        assert cohort("node", "local-1", "--revoke", "--home", str(home)).returncode == 0
        started.find(r"trainer-worker ended with status 77\.(.)")
        assert answers(address)
        assert started.end(signal.SIGINT) == 0
    # With nothing running a command brings the database up for itself.
    made = cohort("user", "ann", "--project", "adders", "--home", str(home))
    assert re.search(r"with the password \S{19}\b", made.stdout), made.stderr
    assert people(home) == 1


def test_a_taken_port_is_said_before_anything_starts(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = cohort("up", "--home", str(home), "--port", str(port))
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (home / "pg").exists()


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["up", "--port", "70000"], {}, "'70000' is not a port number from 0 to 65535"),
        (["up", "--host", "203.0.113.7"], {}, "cannot listen on 203.0.113.7"),
        (["up"], {"COHORT_DATABASE_URL": "postgresql://elsewhere"}, "COHORT_DATABASE_URL is set, but this command"),
        (["demo", "--steps", "0"], {}, "'0' is not a whole number of 1 or more"),
        (["user", "ann"], {}, "there is no Cohort in"),
        (["manage", "check"], {}, "there is no Cohort in"),
        (["manage", "check"], {"COHORT_DATABASE_URL": "postgresql://x", "COHORT_MODE": "fish"}, "COHORT_MODE: Input"),
        (["manage", "check"], {"COHORT_DATABASE_URL": "postgresql://x"}, "COHORT_SECRET_KEY"),
        (["node", "gpu-1", "--gpus", "1"], {}, "--broker-user"),
        (["verify", "no-such-card.zip"], {}, "no-such-card.zip"),
    ],
)
def test_bad_use_is_answered_in_words(home: Path, words: list[str], environment: dict[str, str], message: str) -> None:
    done = cohort(*words, COHORT_HOME=str(home), **environment)
    assert done.returncode not in (0, None)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def kill_database(home: Path) -> None:
    Process(int((home / "pg" / "postmaster.pid").read_text().split()[0])).kill()


@pytest.mark.slow
def test_a_killed_database_is_started_again_until_it_dies_too_often(home: Path) -> None:
    """Pages and workers connect anew by themselves. Without a database the parts are not waited for as with one."""
    with up(home) as (started, address):
        assert cohort("user", "ann", "--project", "adders", "--home", str(home)).returncode == 0
        parts = {process.pid for process in belonging_to(home) if "postgres" not in process.name()}
        for death in range(1, 5):
            for process in belonging_to(home):
                if death == 4 and "worker.celery_app" in process.cmdline():
                    process.suspend()  # it would use all the time that it has
            kill_database(home)
            if death < 4:
                started.until(lambda deaths=death: started.printed.count("Started it again.") == deaths)
                started.until(lambda: answers(address))
                assert people(home) == 1
                assert parts <= {process.pid for process in belonging_to(home)}, "no other part ended"
        assert started.process.wait(DEADLINE) == 1
        assert "It died too often, so everything is stopped." in started.printed
        assert "trainer-worker was killed: it did not stop in 15 s" in started.printed
        assert "Traceback" not in started.printed


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True], ids=["asked to stop", "the database is gone"])
def test_a_further_interrupt_does_not_wait(home: Path, fault: bool) -> None:
    """The trainer's worker is first to be stopped; here it is halted, so it would use all the time that it has."""
    with up(home) as (started, _):
        for process in belonging_to(home):
            if "worker.celery_app" in process.cmdline():
                process.suspend()
        if fault:
            (home / "pg" / "PG_VERSION").write_text("15\n")  # it cannot be started again
            kill_database(home)
        else:
            started.process.send_signal(signal.SIGINT)
        started.until(lambda: "Stopping" in started.printed)
        assert started.process.poll() is None, "the worker is waited for"
        assert started.end(signal.SIGINT) == int(fault)
        assert "trainer-worker was killed: asked to hurry" in started.printed
        assert ("was made by PostgreSQL 15" in started.printed) == fault
        assert "Traceback" not in started.printed
    assert belonging_to(home) == []
