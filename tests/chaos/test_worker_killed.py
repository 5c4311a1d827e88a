"""Parts of a demo are killed without warning, as a person would meet it: the run must go on by itself from where it
was, keep every step that had been stored, and end well.
"""

import json
from pathlib import Path

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


@pytest.mark.parametrize(
    ("marks", "end"),
    [
        (["grpo_core.cli train"], ["failed", "trainer_killed"]),
        # Nobody is left to report: the worker that is started again finds out, or the lease runs out.
        (["grpo_core.cli train", "worker.celery_app", "worker.supervise", "keeper.py"], ["lost", "worker_lost"]),
    ],
    ids=["trainer", "worker and trainer"],
)
def test_parts_are_killed(demo_home: Path, marks: list[str], end: list[object]) -> None:
    started = training(demo_home)
    words = {process: " ".join(process.cmdline()) for process in belonging_to(demo_home)}
    kill_at_once([process for process in words if any(mark in words[process] for mark in marks)])
    assert ends_well(started, demo_home)["ends"][0] == end
    assert ("Started it again." in started.printed) == (end[0] == "lost")
