"""How OpenMP's threads wait in a trainer: as OpenMP itself tells, when torch loads it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import clean_environment


def told(folder: Path, **environment: str) -> str:
    """What OpenMP understood, in a `grpo` that loads torch."""
    words = [sys.executable, "-P", "-m", "grpo_core.cli", "cold-start", "--out", str(folder / "model"), "--steps", "1"]
    done = subprocess.run(
        words,
        env=clean_environment("OMP_", "GOMP_") | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch is built with another OpenMP here")
    return done.stderr


def test_threads_sleep_soon(tmp_path):
    said = told(tmp_path)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in said
    assert "GOMP_SPINCOUNT = '2000'" in said


def test_what_somebody_set_stands(tmp_path):
    said = told(tmp_path, OMP_WAIT_POLICY="ACTIVE")
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in said
    assert "GOMP_SPINCOUNT = '2000'" not in said
