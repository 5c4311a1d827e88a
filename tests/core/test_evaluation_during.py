"""Evaluations while training: they change nothing of the training, survive a kill, decide the best checkpoint, and may
end the run early. docs/evaluation.md, docs/checkpoints.md."""

from pathlib import Path

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import step_folder
from grpo_core.trainer.trainer import Trainer

from .runs import (
    ENGINES,
    KILLED,
    Setting,
    metrics_of,
    names_of_steps,
    outcome_of,
    result,
    rows,
    setting,
    state_of,
    weights_of,
)

SUITE = {"path": "builtin:format", "limit": 6, "max_completion_tokens": 4}
EVERY: dict[str, object] = {"eval": {"every": 1, "during": ["heldout", "format"], "suites": [SUITE]}}


def without_evaluations(row: dict[str, dict[str, object]]) -> dict[str, object]:
    metrics = {name: value for name, value in row["metrics"].items() if not name.startswith("eval/")}
    return {**row, "metrics": metrics}


@pytest.mark.parametrize("name", ["plain", "lora", *[name for name in ENGINES if name in ("shared", "ahead", "waves")]])
def test_training_is_the_same_to_the_bit_with_and_without(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, name).train(out, **EVERY) == 0
    evaluated, plain = result(out), whole(name)
    assert all("eval/heldout/score" in row["metrics"] for row in evaluated.metrics)
    assert evaluated.weights == plain.weights
    assert [without_evaluations(row) for row in evaluated.metrics] == plain.metrics
    assert (evaluated.samples, evaluated.totals) == (plain.samples, plain.totals)
