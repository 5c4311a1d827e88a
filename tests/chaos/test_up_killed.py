"""`cohort up` when its parts, or itself, or everything is killed: started again or ended in words, nothing left behind,
nothing stored lost.
"""

import json
from pathlib import Path

import psutil
import pytest

from tests.processes import DEADLINE, Started, answers, belonging_to, cohort, kill_at_once, people, shell, up, wait_for

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

    def masters() -> list[psutil.Process]:
        web = {process.pid: process for process in belonging_to(cohort_home) if "gunicorn" in process.cmdline()}
        return [process for process in web.values() if process.ppid() not in web]

    return wait_for(masters, lambda: "no web server")[0]


@pytest.mark.parametrize("everything", [False, True], ids=["up itself", "everything at once"])
def test_nothing_is_left_and_it_starts_again(cohort_home: Path, everything: bool) -> None:
    """The kernel tells the parts that `cohort up` is gone; the next start finds its way."""
    with up(cohort_home) as (started, _):
        cohort("user", "ann", "--project", "adders", "--home", str(cohort_home))
        parts = [process.pid for process in belonging_to(cohort_home)]
        kill_at_once(parts if everything else [started.process.pid])
        started.process.wait()
        wait_for(lambda: not belonging_to(cohort_home), lambda: str(belonging_to(cohort_home)))
    with up(cohort_home) as (_, address):
        assert answers(address)
        assert people(cohort_home) == 1


STEPS = 40
STORED = """
import json
from cohort.runs.models import Run
from cohort.runs.transitions import current_rows
run = Run.objects.get()
steps = list(current_rows(run.steps).order_by("step").values_list("step", flat=True))
print(json.dumps([run.state, steps, list(run.attempts.order_by("fence").values_list("end_code", "resumed_step"))]))
"""


def test_a_demo_whose_worker_is_killed_goes_on_by_itself(demo_home: Path) -> None:
    """From where it was, with every step that had been stored, to its card. Nobody is left to report: the worker that
    is started again finds out, or the lease runs out."""
    words = ["demo", "--home", str(demo_home), "--port", "0", "--steps", str(STEPS)]
    started = Started(words, demo_home.with_name("printed.txt"))
    started.find(rf"\] step ([3-9]|[12]\d) of {STEPS}")
    parts = {process.pid: " ".join(process.cmdline()) for process in belonging_to(demo_home)}
    marks = ("grpo_core.cli.main train", "worker.celery_app", "worker.supervisor", "reaper.py")
    kill_at_once([pid for pid, words in parts.items() if any(mark in words for mark in marks)])
    assert started.process.wait() == 0, started.printed
    assert "Started it again." in started.printed
    assert "cohort verify    accepted" in started.printed
    assert belonging_to(demo_home) == []
    state, steps, [first, second] = json.loads(shell(demo_home, STORED))
    assert (state, steps, first) == ("succeeded", list(range(1, STEPS + 1)), ["worker_lost", None])
    assert second[0] == "ok"
    assert second[1] >= 3, "the step that was seen stored came after its checkpoint"


def test_a_demo_whose_database_is_killed_continues_in_its_attempt(demo_home: Path) -> None:
    """The worker keeps its records until the platform takes them again; no lease ends for the platform's own outage."""
    words = ["demo", "--home", str(demo_home), "--port", "0", "--steps", str(STEPS)]
    started = Started(words, demo_home.with_name("printed.txt"))
    for number, step in ((1, r"[5-9]|\d\d"), (2, r"\d\d")):  # a line comes every few steps, not at each
        started.find(rf"\] step ({step}) of {STEPS}")
        psutil.Process(int((demo_home / "pg" / "postmaster.pid").read_text().split()[0])).kill()
        started.until(lambda deaths=number: started.printed.count("Started it again.") == deaths)
    assert started.process.wait() == 0, started.printed
    assert "cohort verify    accepted" in started.printed
    assert belonging_to(demo_home) == []
    state, steps, attempts = json.loads(shell(demo_home, STORED))
    assert (state, steps, attempts) == ("succeeded", list(range(1, STEPS + 1)), [["ok", None]])
