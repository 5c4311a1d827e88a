"""`cohort up` when its parts, or itself, or everything is killed: started again or ended in words, nothing left behind,
nothing stored lost.
"""

from pathlib import Path

import psutil
import pytest

from tests.chaos.test_kills import kill_at_once
from tests.processes import DEADLINE, answers, belonging_to, cohort, people, up, wait_for

pytestmark = pytest.mark.chaos


def test_a_dead_part_is_started_again_and_too_many_deaths_end_everything(cohort_home: Path) -> None:
    with up(cohort_home, "--no-trainer") as (started, address):
        for death in range(1, 5):
            web = gunicorn_master(cohort_home)
            web.kill()
            if death < 4:
                started.until(lambda deaths=death: started.printed.count("Started it again.") == deaths)
                started.until(lambda: answers(address))
        assert started.process.wait(DEADLINE) == 1
        assert started.printed.count("Started it again.") == 3
        assert "web was killed by signal SIGKILL" in started.printed
        assert "It died too often, so everything is stopped." in started.printed
        assert "Traceback" not in started.printed


def gunicorn_master(cohort_home: Path) -> psutil.Process:
    """The web server's first process, once it is there."""

    def found() -> psutil.Process | None:
        masters = []
        for process in belonging_to(cohort_home):
            parent = process.parent()
            if "gunicorn" in process.cmdline() and parent is not None and "gunicorn" not in parent.cmdline():
                masters.append(process)
        return masters[0] if masters else None

    return wait_for(found, lambda: "no web server")


@pytest.mark.parametrize("everything", [False, True], ids=["up itself", "everything at once"])
def test_nothing_is_left_and_it_starts_again(cohort_home: Path, everything: bool) -> None:
    """The kernel tells the parts that `cohort up` is gone; the next start finds its way."""
    with up(cohort_home) as (started, _):
        cohort("user", "ann", "--project", "adders", "--home", str(cohort_home))
        kill_at_once(belonging_to(cohort_home) if everything else [psutil.Process(started.process.pid)])
        started.process.wait()
        wait_for(lambda: not belonging_to(cohort_home), lambda: str(belonging_to(cohort_home)))
    with up(cohort_home) as (_, address):
        assert answers(address)
        assert people(cohort_home) == 1
