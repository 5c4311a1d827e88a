"""Loss and gradients of a reward model next to TRL's RewardTrainer: the same classifier, the same pairs of token ids.
Prints one table, then a line per target.

    make bench-env && .venv/bin/python benchmarks/reward_parity.py

The work: a random Llama of two layers with one number, fp32; 12 pairs of 3 to 40 tokens, in one batch. TRL's figures
come from its own training loop (sides/trl_reward.py), ours from our own engine, in one micro-batch and in several.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

from grpo_core.config.reward_model import RewardModelConfig
from grpo_core.config.run import ModelConfig
from grpo_core.model.classifier import load_classifier
from grpo_core.model.load import find_model
from grpo_core.model.tiny import TinyShape, save_tiny
from grpo_core.training.reward_model import PreferenceRow, RewardModelTraining

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-bench/bin/python"
TARGET = 1e-5
"""Largest difference, relative to the largest gradient of the same weight, that fp32 rounding explains; of the
loss, relative to it."""
PAIRS = 12


def main() -> int:
    if not PEER.is_file():
        print(f"{PEER} is missing; run: make bench-env", file=sys.stderr)
        return 2
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_tiny(folder / "base", seed=0, shape=TinyShape(hidden=64, layers=2, heads=4, feed_forward=192))
        start = load_classifier(*_source(folder / "base", center=0.0), device=torch.device("cpu")).loaded
        start.model.save_pretrained(folder / "model")
        start.tokenizer.save_pretrained(folder / "model")
        cases = make_cases()
        (folder / "cases.json").write_text(json.dumps(cases))
        subprocess.run([PEER, HERE / "sides/trl_reward.py", folder], check=True, stdout=subprocess.DEVNULL)
        theirs = json.loads((folder / "trl/losses.json").read_text())
        worst_loss = worst_gradient = 0.0
        print(f"{'case':32} {'TRL':>10} {'Cohort':>10} {'Δ loss':>9} {'Δ gradient':>11}")
        for number, case in enumerate(cases):
            gradients = load_file(folder / f"trl/{number}.safetensors")
            for tokens, portions in ((10_000, "one micro-batch"), (60, "several")):
                loss, ours = run(folder / "model", case, tokens)
                off = abs(loss - theirs[number]) / theirs[number]
                assert gradients.keys() == ours.keys()
                worst = max(_furthest(gradients[name], ours[name]) for name in ours)
                worst_loss, worst_gradient = max(worst_loss, off), max(worst_gradient, worst)
                name = f"{case['name']}, {portions}"
                print(f"{name:32} {theirs[number]:10.6f} {loss:10.6f} {off:9.1e} {worst:11.1e}")
    for name, value in (("loss", worst_loss), ("gradient", worst_gradient)):
        print(f"RESULT reward_parity_{name} {value:.1e} {TARGET:.0e} {'ok' if value <= TARGET else 'miss'}")
    return 0


def make_cases() -> list[dict[str, Any]]:
    """Plain, with margins, centred, and both; ids of letters."""
    rng = random.Random(0)
    pairs = [
        {
            "chosen_ids": [rng.randrange(40, 90) for _ in range(rng.randrange(3, 41))],
            "rejected_ids": [rng.randrange(40, 90) for _ in range(rng.randrange(3, 41))],
        }
        for _ in range(PAIRS)
    ]
    with_margins = [{**pair, "margin": rng.choice([0.0, 0.5, 2.0])} for pair in pairs]
    return [
        {"name": "plain", "center": 0.0, "rows": pairs},
        {"name": "margins", "center": 0.0, "rows": with_margins},
        {"name": "centred", "center": 0.01, "rows": pairs},
        {"name": "margins, centred", "center": 0.5, "rows": with_margins},
    ]


def run(model: Path, case: dict[str, Any], tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    """(our loss, our gradients by weight) of the case, with micro-batches of so many tokens."""
    source, config = _source(model, center=case["center"], tokens=tokens)
    loaded = load_classifier(source, config, device=torch.device("cpu")).loaded
    training = RewardModelTraining(loaded, config)
    rows = [
        PreferenceRow((tuple(row["chosen_ids"]), tuple(row["rejected_ids"])), row.get("margin", 0.0))
        for row in case["rows"]
    ]
    updated = training.update(rows, step=1)
    gradients = {name: p.grad.clone() for name, p in loaded.model.named_parameters()}
    return updated.metrics["loss"], gradients


def _source(folder: Path, *, center: float, tokens: int = 10_000) -> tuple[Any, RewardModelConfig]:
    config = RewardModelConfig.from_dict(
        {
            "model": {"path": str(folder)},
            "data": {"path": "none"},
            "center": center,
            "optim": {"lr": 1e-20, "max_grad_norm": 1e9},
            "engine": {"micro_batch_tokens": tokens, "device": "cpu"},
            "eval": {"before": False, "after": False},
        }
    )
    return find_model(ModelConfig(path=str(folder)), base=Path("/")), config


def _furthest(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """Largest difference, relative to the largest number of theirs."""
    return ((theirs - ours).abs().max() / theirs.abs().max()).item()


if __name__ == "__main__":
    sys.exit(main())
