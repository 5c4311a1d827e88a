"""The benchmarks of Cohort's side run, at a size where only running is to be seen."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["trl.py", "--ours", "--cases", "tiny", "--rounds", "1", "--profile", "--python", sys.executable], "PROFILE"),
        (["engine_growth.py", "--small", "--rounds", "1", "--axes", "group"], "RESULT growth_sample_time_by_group"),
        (["gpu.py", "--tiny", "--ours", "--steps", "1", "--python", sys.executable], "RESULT gpu_update_share_of_rate"),
    ],
    ids=["trl", "growth", "gpu"],
)
def test_benchmarks_run(words: list[str], result: str) -> None:
    script, *options = words
    done = subprocess.run([sys.executable, FOLDER / script, *options], capture_output=True, text=True, check=True)
    assert result in done.stdout
