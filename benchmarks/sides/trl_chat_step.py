"""TRL's side of one step on conversations: its own prompt ids, and its loss and gradient on completions that are given.

Runs in .venv-bench. The learning rate is 0, so nothing moves.

    trl_chat_step.py FOLDER     (reads model/ and step.json; writes trl.json and trl.safetensors)
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder = Path(sys.argv[1])
step = json.loads((folder / "step.json").read_text())
prompts: list[list[dict[str, str]]] = step["prompts"]
completions: list[list[list[int]]] = step["completions"]
rewards: list[list[float]] = step["rewards"]
losses: list[float] = []
ids: dict[int, list[int]] = {}
gradients: dict[str, torch.Tensor] = {}


def rollout(asked: list[Any], trainer: Any) -> dict[str, Any]:
    """The completions of each prompt in turn; the prompt's ids are TRL's."""
    tokenized = trainer.processing_class.apply_chat_template(
        conversation=asked, tokenize=True, add_generation_prompt=True, return_dict=True, **trainer.chat_template_kwargs
    )["input_ids"]
    drawn, used = [], [0] * len(prompts)
    for prompt, tokens in zip(asked, tokenized, strict=True):
        number = prompts.index(prompt)
        ids[number] = list(tokens)
        drawn.append(completions[number][used[number]])
        used[number] += 1
    return {"prompt_ids": tokenized, "completion_ids": drawn, "logprobs": None}


def paid(prompts: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
    places = [step["prompts"].index(prompt) for prompt in prompts]
    return [rewards[n][completions[n].index(given)] for n, given in zip(places, completion_ids, strict=True)]


class Watched(GRPOTrainer):
    """GRPOTrainer that keeps its losses."""

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        loss = super().compute_loss(*given, **named)
        losses.append(loss.item())
        return loss


class Keep(TrainerCallback):
    """Takes the gradient before the optimiser."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        gradients.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


group = len(completions[0])
with tempfile.TemporaryDirectory() as out:
    trainer = Watched(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=paid,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        rollout_func=rollout,
        callbacks=[Keep()],
        args=GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=group * len(prompts),
            num_generations=group,
            max_completion_length=step["max_tokens"],
            temperature=1.0,
            learning_rate=0.0,
            max_steps=1,
            max_grad_norm=0.0,
            beta=0.0,
            loss_type="dapo",
            shuffle_dataset=False,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
save_file(gradients, folder / "trl.safetensors")
(folder / "trl.json").write_text(json.dumps({"ids": [ids[n] for n in range(len(prompts))], "loss": sum(losses)}))
