"""Runs the sides of a benchmark in processes of their own, in turn, and keeps what they say."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sides.work import Work

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where Cohort is not installed

from grpo_core.cli.main import OPENMP_POLICY

HERE = Path(__file__).resolve().parent
OURS, TRL = "Cohort", "TRL 1.16.0"
PYTHONS = {OURS: HERE.parents[1] / ".venv/bin/python", TRL: HERE.parents[1] / ".venv-bench/bin/python"}
SCRIPTS = {OURS: HERE / "cohort_grpo.py", TRL: HERE / "trl_grpo.py"}


@dataclass
class Side:
    """All that one side said of one case."""

    rounds: list[dict[str, Any]] = field(default_factory=list)

    def all(self, name: str) -> list[float]:
        """A figure of every measured step of every round."""
        return [value for one in self.rounds for value in one.get(name, [])]

    @property
    def seconds(self) -> float:
        """Of a step, median."""
        return statistics.median(self.all("seconds"))

    @property
    def peak(self) -> float:
        """Peak memory in GiB, median over the rounds; the device's where there was one."""
        return statistics.median(one.get("peak_device_gb") or one["peak_rss_gb"] for one in self.rounds)


def missing(pythons: dict[str, Path]) -> list[Path]:
    return [python for python in pythons.values() if not python.is_file()]


def make(folder: Path, work: Work, python: Path = PYTHONS[OURS]) -> None:
    """The model and the work of a case, in `folder`, which both sides load."""
    folder.mkdir(parents=True, exist_ok=True)
    work.save(folder)
    if work.pretrained and not (folder / "model").exists():
        (folder / "model").symlink_to(Path(work.pretrained).resolve())
    if not (folder / "model").exists():
        words = [folder / "model", work.model, work.vocabulary, work.max_tokens, work.mean_tokens]
        done = subprocess.run(
            [python, HERE / "make_model.py", *map(str, words)], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"the model could not be made:\n{done.stderr}")


def run(side: str, folder: Path, work: Work, steps: int, *, python: Path, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run of one side: what it said, and the lines before that under "lines". Exits with its last words where it
    failed."""
    work.save(folder)
    done = subprocess.run(
        [python, SCRIPTS[side], folder, str(steps), *also],
        env=os.environ | OPENMP_POLICY if side == OURS else None,  # what `grpo` sets before torch is loaded
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{side} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    *lines, last = done.stdout.splitlines()
    return {**json.loads(last), "lines": lines}


def result(name: str, figure: float, target: float, *, at_least: bool) -> str:
    """The line of one target."""
    held = figure >= target if at_least else figure <= target
    return f"RESULT {name} {figure:.2f} {target:g} {'ok' if held else 'miss'}"
