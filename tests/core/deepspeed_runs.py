"""Runs of the real command with DeepSpeed, as torchrun starts its ranks, beside the same run in one plain process."""

from pathlib import Path

from tests.needs import DEEPSPEED_PYTHON

from .runs import OF_THE_MACHINE, Launched, Setting, far, metrics_of, outcome_of, weights_of

LIKE = 1e-5
"""Largest difference to the plain engine that fp32 may show, in metrics relative to those above 1."""


def engine(stage: int, *, ranks: int = 2, offload: str = "none", **more: object) -> dict[str, object]:
    parts = {"zero_stage": stage, "offload": offload}
    return {"engine": {"training": "deepspeed", "devices": ranks, "deepspeed": parts, **more}}


def train(setting: Setting, out: Path, *words: str, fault: str = "", **more: object) -> Launched:
    return Launched(setting.write(**more), out, *words, python=DEEPSPEED_PYTHON, GRPO_FAULT=fault)


def metrics(out: Path) -> list[dict[str, float]]:
    """Of each step, without those that only time and the number of ranks decide."""
    return [
        {name: value for name, value in step.items() if name.split("/")[0] not in OF_THE_MACHINE}
        for step in metrics_of(out)
    ]


def alike(out: Path, plain: Path, *, within: float = LIKE) -> None:
    """The run recorded and learned what the plain one did."""
    assert outcome_of(out)["status"] == "finished", outcome_of(out)
    for step, (ours, theirs) in enumerate(zip(metrics(out), metrics(plain), strict=True), start=1):
        assert ours.keys() == theirs.keys()
        off = {name: abs(ours[name] - theirs[name]) / max(1.0, abs(theirs[name])) for name in ours}
        beyond = {name: value for name, value in off.items() if not value <= within}  # so also what is no number
        assert not beyond, (step, beyond)
    assert far(weights_of(out), weights_of(plain)) <= within
