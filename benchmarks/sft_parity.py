"""Fine-tuning beside TRL's SFTTrainer: the same model and rows, loss and gradient, padded and packed. Prints a table,
then a line per target.

    make bench-env && .venv/bin/python benchmarks/sft_parity.py

The work: a random Llama of two layers, fp32; eight prompts with completions, and four conversations of one to three
turns under a chat template. TRL's figures come from its own data preparation and training loop (sides/trl_sft.py), ours
from reading the same rows, encoding them and one update of our own engine.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sides import sft_cases
from torch import Tensor
from transformers.utils import logging as transformers_logging

from grpo_core.config.sft import SftConfig
from grpo_core.data.answers import encode_conversations
from grpo_core.data.supervised import load_conversations
from grpo_core.model.load import find_model, load_model
from grpo_core.model.tiny import TinyShape, save_tiny
from grpo_core.trainer.sft import train_rows
from grpo_core.training.single import SingleTraining

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-bench/bin/python"
TARGET = 1e-5
"""Largest difference, relative to the loss and to the largest gradient of the same weight."""
SHAPE = TinyShape(hidden=64, layers=2, heads=4, feed_forward=192)


def main() -> int:
    if not PEER.is_file():
        print(f"{PEER} is missing; run: make bench-env", file=sys.stderr)
        return 2
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_tiny(folder / "model", seed=0, shape=SHAPE)
        subprocess.run([PEER, HERE / "sides/trl_sft.py", folder], check=True, stdout=subprocess.DEVNULL)
        theirs = json.loads((folder / "trl/losses.json").read_text())
        lines = []
        for number, case in enumerate(sft_cases.CASES):
            assert theirs[number]["case"] == case.name
            loss, gradients = ours(case, folder)
            off = furthest(load_file(folder / f"trl/{number}.safetensors"), gradients)
            lines.append((case.name, theirs[number]["loss"], loss, off))
    width = max(len(name) for name, *_ in lines)
    print(f"{'':{width}} {'TRL loss':>10} {'Cohort':>10} {'loss, rel':>10} {'grad, rel':>10}")
    for name, their_loss, loss, off in lines:
        print(f"{name:{width}} {their_loss:10.6f} {loss:10.6f} {abs(their_loss - loss) / loss:10.1e} {off:10.1e}")
    losses = max(abs(their_loss - loss) / loss for _, their_loss, loss, _ in lines)
    for name, worst in (("sft_loss", losses), ("sft_gradient", max(off for *_, off in lines))):
        print(f"RESULT {name} {worst:.1e} {TARGET:g} {'ok' if worst <= TARGET else 'miss'}")
    return 0


def ours(case: sft_cases.Case, folder: Path) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of one update on the case's rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in case.rows), encoding="utf-8")
    data: dict[str, Any] = {"path": str(path), **({"chat_template": sft_cases.TEMPLATE} if case.turns else {})}
    parts = {
        "model": {"path": str(folder / "model")},
        "data": data,
        "optim": {"max_grad_norm": 1e9, "lr": 1e-9},
        "engine": {"layout": case.layout, "micro_batch_tokens": 200 if case.micro_batches > 1 else 16384},
    }
    config = SftConfig.from_dict(parts)
    policy = load_model(find_model(config.model, base=folder), dtype="float32", device=torch.device("cpu"))
    encoded = encode_conversations(
        load_conversations(path),
        policy.encoder(config.data),
        end=policy.tokenizer.eos_token_id,
        turns="all",
        most=10_000,
        drop_long=False,
        source=path.name,
    )
    updated = SingleTraining(policy, None, config).update(train_rows(encoded.conversations), step=1)
    return updated.metrics["loss"], {name: weight.grad for name, weight in policy.model.named_parameters()}


def furthest(theirs: dict[str, Tensor], own: dict[str, Tensor]) -> float:
    """Largest difference of a gradient, relative to the largest of the same weight."""
    assert theirs.keys() == own.keys()
    return max(((theirs[name] - own[name]).abs().max() / theirs[name].abs().max()).item() for name in theirs)


if __name__ == "__main__":
    sys.exit(main())
