"""How OpenMP's threads wait in a trainer: as OpenMP itself tells, when torch loads it."""

import subprocess
import sys

import pytest

from grpo_core.waiting import wait_asleep
from tests.processes import clean_environment


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
