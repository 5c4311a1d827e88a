"""Parts of a demo are killed without warning, as a person would meet it: the run must go on by itself from where it
was, keep every step that had been stored, and end well.
"""

import json
from pathlib import Path

import psutil
import pytest

from tests.chaos.test_kills import kill_at_once
from tests.processes import Started, belonging_to, shell, wait_for

pytestmark = pytest.mark.chaos

STEPS = 80
STORED = """
import json
from cohort.runs.models import Run
from cohort.runs.selectors.standing import standing
run = Run.objects.latest("pk")
print(json.dumps({
    "state": run.state,
    "steps": list(standing(run.steps).order_by("step").values_list("step", flat=True)),
    "ends": list(run.attempts.order_by("fence").values_list("state", "end_code")),
    "resumed": list(run.attempts.order_by("fence").values_list("resumed_step", flat=True)),
}))
"""


def training(home: Path) -> Started:
    """A demo that has stored three steps."""
    words = ["demo", "--home", str(home), "--port", "0", "--steps", str(STEPS)]
    started = Started(words, home.with_name("printed.txt"))
    started.find(rf"\] step ([3-9]|[1-4]\d) of {STEPS}")
    return started


def trainers(home: Path) -> list[psutil.Process]:
    return [process for process in belonging_to(home) if {"grpo_core.cli", "train"} <= set(process.cmdline())]


def ends_well(started: Started, home: Path) -> dict[str, list[object]]:
    """What is stored once the demo has accepted its card and all is stopped."""
    wait_for(lambda: started.process.poll() is not None, lambda: started.printed)
    print(started.printed)
    assert started.process.returncode == 0, started.printed
    assert "cohort verify    accepted" in started.printed
    assert belonging_to(home) == []
    with_database = Started(["up", "--home", str(home), "--port", "0", "--no-trainer"], home.with_name("again.txt"))
    with_database.find(r"Cohort is at (http://\S+)")
    seen = dict(json.loads(shell(home, STORED)))
    with_database.end()
    assert seen["state"] == "succeeded"
    assert seen["steps"] == list(range(1, STEPS + 1))
    assert len(seen["ends"]) == 2
    assert seen["ends"][-1] == ["finished", "ok"]
    assert seen["resumed"][0] is None
    assert seen["resumed"][1] >= 3  # the step that was seen stored came after its checkpoint
    return seen


def test_the_trainer_is_killed(demo_home: Path) -> None:
    started = training(demo_home)
    kill_at_once(trainers(demo_home))
    seen = ends_well(started, demo_home)
    assert seen["ends"][0] == ["failed", "trainer_killed"]
    assert "Started it again." not in started.printed


def test_worker_and_trainer_are_killed_together(demo_home: Path) -> None:
    """Nobody is left to report: the worker that is started again finds out, or the lease runs out."""
    started = training(demo_home)
    kill_at_once([process for process in belonging_to(demo_home) if is_of_the_worker(process)])
    seen = ends_well(started, demo_home)
    assert "trainer-worker was killed by signal SIGKILL" in started.printed
    assert "Started it again." in started.printed
    assert seen["ends"][0] == ["lost", "worker_lost"]


def is_of_the_worker(process: psutil.Process) -> bool:
    """Celery's process of the worker, the supervisor, its keeper, the trainer."""
    words = " ".join(process.cmdline())
    return any(mark in words for mark in ("worker.celery_app", "worker.supervise", "keeper.py", "grpo_core.cli train"))
