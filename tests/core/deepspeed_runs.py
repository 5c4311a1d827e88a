"""Runs of the real command with DeepSpeed, as torchrun starts its ranks, beside the same run in one plain process."""

import json
import os
import subprocess
from pathlib import Path

from tests.needs import DEEPSPEED_PYTHON
from tests.processes import clean_environment

from .runs import OF_THE_MACHINE, Setting, far, metrics_of, weights_of

LIKE = 1e-5
"""Largest difference to the plain engine that fp32 may show, in metrics relative to those above 1."""


def engine(stage: int, *, ranks: int = 2, offload: str = "none", **more: object) -> dict[str, object]:
    parts = {"zero_stage": stage, "offload": offload}
    return {"engine": {"training": "deepspeed", "devices": ranks, "deepspeed": parts, **more}}


def command(setting: Setting, out: Path, *words: str, **more: object) -> list[str]:
    path = setting.write(**more)
    return [str(DEEPSPEED_PYTHON), "-P", "-m", "grpo_core.cli", "train", str(path), "--out", str(out), *words]


def surroundings(**more: str) -> dict[str, str]:
    return {**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", **more}


def train(
    setting: Setting, out: Path, *words: str, fault: str = "", **more: object
) -> "subprocess.CompletedProcess[str]":
    """All that it prints is its standard output."""
    return subprocess.run(
        command(setting, out, *words, **more),
        env=surroundings(**({"GRPO_FAULT": fault} if fault else {})),
        cwd=os.getcwd(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def metrics(out: Path) -> list[dict[str, float]]:
    """Of each step, without those that only time and the number of ranks decide."""
    return [
        {name: value for name, value in step.items() if name.split("/")[0] not in OF_THE_MACHINE}
        for step in metrics_of(out)
    ]


def alike(out: Path, plain: Path, *, within: float = LIKE) -> None:
    """The run recorded and learned what the plain one did."""
    outcome = json.loads((out / "outcome.json").read_text())
    assert outcome["status"] == "finished", outcome
    for step, (ours, theirs) in enumerate(zip(metrics(out), metrics(plain), strict=True), start=1):
        assert ours.keys() == theirs.keys()
        off = {name: abs(ours[name] - theirs[name]) / max(1.0, abs(theirs[name])) for name in ours}
        beyond = {name: value for name, value in off.items() if not value <= within}  # so also what is no number
        assert not beyond, (step, beyond)
    assert far(weights_of(out), weights_of(plain)) <= within
