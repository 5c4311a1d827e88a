"""Parts of a training run are killed without warning: the run must end as failed with the reason, keep every step that
had been stored, and leave a Cohort that trains the next run.
"""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.processes import Started, belonging_to, cohort, shell, wait_for

pytestmark = pytest.mark.chaos

STORED = """
import json
from cohort.runs.models import Run
run = Run.objects.latest("pk")
print(json.dumps({
    "state": run.state,
    "code": run.error_code,
    "reason": run.reason,
    "log": run.log_tail,
    "steps": sorted(run.steps.values_list("step", flat=True)),
    "attempts": list(run.attempts.values_list("state", flat=True)),
    "sealed": hasattr(run, "record"),
}))
"""


def training(home: Path) -> Started:
    """A demo that has stored three steps of many."""
    words = ["demo", "--home", str(home), "--port", "0", "--steps", "5000"]
    started = Started(words, home.with_name("printed.txt"))
    started.find(r"\] step ([3-9]|\d\d+) of 5000")
    return started


def trainers(home: Path) -> list[psutil.Process]:
    return [process for process in belonging_to(home) if {"grpo_core.cli", "train"} <= set(process.cmdline())]


def stored(home: Path) -> dict[str, object]:
    return dict(json.loads(shell(home, STORED)))


def kill_at_once(processes: list[psutil.Process]) -> None:
    assert processes
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)  # so that none can react to another's end
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def test_the_trainer_is_killed(demo_home: Path) -> None:
    started = training(demo_home)
    kill_at_once(trainers(demo_home))
    wait_for(lambda: started.process.poll() is not None, lambda: started.printed)
    assert started.process.returncode == 1
    assert "the run is failed" in started.printed
    seen = stored(demo_home)
    assert seen["state"] == "failed"
    assert seen["attempts"] == ["failed"]
    assert isinstance(seen["steps"], list)
    assert seen["steps"] == list(range(1, len(seen["steps"]) + 1))
    assert len(seen["steps"]) >= 3
    assert belonging_to(demo_home) == []


def test_worker_and_trainer_are_killed_together(demo_home: Path) -> None:
    """Nobody is left to report, so the platform must find out by itself when the lease is over."""
    started = training(demo_home)
    workers = [process for process in belonging_to(demo_home) if "worker.celery_app" in process.cmdline()]
    kill_at_once([*workers, *trainers(demo_home)])
    wait_for(lambda: started.process.poll() is not None, lambda: started.printed)
    assert started.process.returncode == 1
    assert "trainer-worker was killed by signal SIGKILL" in started.printed
    assert "Started it again." in started.printed
    seen = stored(demo_home)
    assert (seen["state"], seen["code"], seen["attempts"]) == ("failed", "worker_lost", ["lost"])
    assert isinstance(seen["steps"], list)
    assert seen["steps"] == list(range(1, len(seen["steps"]) + 1))
    assert len(seen["steps"]) >= 3
    assert belonging_to(demo_home) == []

    after = cohort("demo", "--home", str(demo_home), "--port", "0", "--steps", "1")
    assert after.returncode == 0, after.stdout + after.stderr
