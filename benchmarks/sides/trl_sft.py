"""TRL's side of the fine-tuning comparison: its own SFTTrainer, its own data preparation and training loop.

Runs in .venv-bench. Of every case one optimiser step, at learning rate 0, over all rows: the loss and the gradient are
written down.

    trl_sft.py FOLDER     (reads FOLDER/model; writes FOLDER/trl)
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sft_cases
import torch
from datasets import Dataset, disable_progress_bars
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import SFTConfig, SFTTrainer

transformers_logging.disable_progress_bar()
disable_progress_bars()
folder = Path(sys.argv[1])


class Watched(SFTTrainer):
    """SFTTrainer that keeps its losses."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.losses: list[float] = []

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        result = super().compute_loss(*given, **named)
        self.losses.append((result[0] if isinstance(result, tuple) else result).item())
        return result


class Gradients(TrainerCallback):
    """Takes the gradient before the optimiser's step."""

    of: dict[str, torch.Tensor]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.of = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run(case: sft_cases.Case, number: int, out: Path) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    if case.turns:
        tokenizer.chat_template = sft_cases.TEMPLATE
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Watched(
            model=AutoModelForCausalLM.from_pretrained(folder / "model"),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(case.rows),
            callbacks=[gradients],
            args=SFTConfig(
                output_dir=scratch,
                per_device_train_batch_size=len(case.rows) // case.micro_batches,
                gradient_accumulation_steps=case.micro_batches,
                assistant_only_loss=case.turns,
                learning_rate=0.0,
                max_steps=1,
                max_grad_norm=0.0,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                logging_steps=1000,
                disable_tqdm=True,
                **case.trl,
            ),
        )
        trainer.train()
    save_file(gradients.of, out / f"{number}.safetensors")
    return {"case": case.name, "loss": sum(trainer.losses), "passes": len(trainer.losses)}


out = folder / "trl"
out.mkdir()
(out / "losses.json").write_text(json.dumps([run(case, n, out) for n, case in enumerate(sft_cases.CASES)]))
