"""How the command's process ends, alone and as one of several ranks."""

import subprocess
import sys

import pytest

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
