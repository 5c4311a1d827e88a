"""TRL's side of the reward model comparison: its own RewardTrainer on pairs of given token ids, one step at rate 0.

Runs in .venv-bench.

    trl_reward.py FOLDER     (reads FOLDER/model and FOLDER/cases.json; writes FOLDER/trl)
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl import RewardConfig, RewardTrainer

folder = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder / "model")


class Gradients(TrainerCallback):
    """Of the step, before the optimiser uses them."""

    taken: dict[str, torch.Tensor]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.taken = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run(case: dict[str, Any], out: Path) -> float:
    """TRL's loss of the case; writes its gradients to `out`."""
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = RewardTrainer(
            model=AutoModelForSequenceClassification.from_pretrained(folder / "model", dtype=torch.float32),
            args=RewardConfig(
                output_dir=scratch,
                per_device_train_batch_size=len(case["rows"]),
                max_steps=1,
                learning_rate=0.0,
                max_grad_norm=1e30,
                center_rewards_coefficient=case["center"] or None,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(case["rows"]),
            processing_class=tokenizer,
            callbacks=[gradients],
        )
        trainer.train()
    save_file({name: tensor.contiguous() for name, tensor in gradients.taken.items()}, out)
    return next(float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


(folder / "trl").mkdir()
losses = [
    run(case, folder / f"trl/{number}.safetensors")
    for number, case in enumerate(json.loads((folder / "cases.json").read_text()))
]
(folder / "trl/losses.json").write_text(json.dumps(losses))
