"""How the command's process ends, alone and as one of several ranks, and how its threads of OpenMP wait."""

import subprocess
import sys

import pytest

from grpo_core.waiting import wait_asleep
from tests.processes import clean_environment

PROGRAM = """
import atexit
from grpo_core import program
atexit.register(print, "taken apart")
def main():
    print("said before")
    {does}
program.run(main)
"""


def ended(does, world):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(does=does)],
        env={**clean_environment("GRPO_"), **world},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("world", [{}, {"WORLD_SIZE": "2"}], ids=["alone", "rank"])
def test_a_rank_ends_with_its_status_and_without_the_interpreter_s_end(world):
    said = ["said before"] if world else ["said before", "taken apart"]
    assert ended("return 7", world) == (7, said, "")
    status, _, told = ended("return {}['screw']", world)
    assert status == 1
    assert told.startswith("Traceback")
    assert told.endswith("KeyError: 'screw'\n")


@pytest.mark.slow
def test_threads_of_openmp_sleep_soon(tmp_path):
    """What OpenMP itself understood, in a `grpo` that loads torch and then fails."""
    words = [sys.executable, "-P", "-m", "grpo_core.cli", "export", str(tmp_path), "--out", str(tmp_path / "out")]
    shown = clean_environment("OMP_", "GOMP_") | {"OMP_DISPLAY_ENV": "VERBOSE"}
    said = subprocess.run(words, env=shown, capture_output=True, text=True, check=False).stderr
    if "GOMP_SPINCOUNT" not in said:
        pytest.skip("torch is built with another OpenMP here")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in said
    assert "GOMP_SPINCOUNT = '2000'" in said


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}), *[({"OMP_WAIT_POLICY": "ACTIVE"},) * 2]],
    ids=["unset", "set by somebody"],
)
def test_what_somebody_set_stands(before, after):
    environment = dict(before)
    wait_asleep(environment)
    assert environment == after
