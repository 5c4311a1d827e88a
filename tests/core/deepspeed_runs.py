"""Runs of the real command with DeepSpeed, as torchrun starts its ranks, beside the same run in one plain process."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.needs import DEEPSPEED_PYTHON
from tests.processes import clean_environment

from .runs import OF_THE_MACHINE, Setting, rows

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


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    printed: str


def train(setting: Setting, out: Path, *words: str, fault: str = "", **more: object) -> Ended:
    done = subprocess.run(
        command(setting, out, *words, **more),
        env=surroundings(**({"GRPO_FAULT": fault} if fault else {})),
        cwd=os.getcwd(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def metrics(out: Path) -> list[dict[str, float]]:
    """Of each step, without those that only time and the number of ranks decide."""
    steps: list[Mapping[str, Any]] = [row["metrics"] for row in rows(out / "metrics.jsonl")]  # type: ignore[misc]
    return [{name: value for name, value in one.items() if name.split("/")[0] not in OF_THE_MACHINE} for one in steps]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "final" / "model.safetensors")


def far(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Largest difference of a weight; not a number where one is none."""
    assert one.keys() == other.keys()
    return torch.stack([(one[name].float() - other[name].float()).abs().max() for name in one]).max().item()


def alike(out: Path, plain: Path, *, within: float = LIKE) -> None:
    """The run said and learned what the plain one did."""
    outcome = json.loads((out / "outcome.json").read_text())
    assert outcome["status"] == "finished", outcome
    ours, theirs = metrics(out), metrics(plain)
    assert len(ours) == len(theirs)
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert mine.keys() == other.keys()
        off = {name: abs(mine[name] - other[name]) / max(1.0, abs(other[name])) for name in mine}
        beyond = {name: value for name, value in off.items() if not value <= within}  # so also what is no number
        assert not beyond, (step, beyond)
    assert far(weights(out), weights(plain)) <= within
