"""A small base model that can add two numbers, some of the time: supervised warm-up on worked additions.

DeepSeek-R1 (arXiv 2501.12948, section 2.3.1) begins with such a cold start, because GRPO can only sharpen what a policy
sometimes does. Never sees the demo's held-out problems. Deterministic: the same recipe and number of threads give the
same weights.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_core.config.prompt import PromptConfig
from grpo_core.data.arithmetic import demo_split, worked_completion
from grpo_core.data.fingerprint import file_sha256, problems_digest
from grpo_core.data.prompts import PromptEncoder
from grpo_core.errors import ModelError
from grpo_core.files.checkpoint import publish_folder, put_back
from grpo_core.files.weights import PROVENANCE
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.tiny import TinyShape, make_tiny
from grpo_core.trainer.manifest import package_versions

PEAK_LR = 1.5e-3
_WARMUP_STEPS = 20
_DECAY_SHARE = 0.2
_FLOOR = 0.1


@dataclass(frozen=True)
class Recipe:
    """All that decides what is taught. A folder that holds the same recipe is used again."""

    steps: int = 120
    batch: int = 64
    seed: int = 0
    split_seed: int = 0
    """Seed of the demo's split; its held-out problems are never shown."""
    layers: int = TinyShape.layers
    """Of the network. Fewer make a student for distillation."""

    @property
    def shape(self) -> TinyShape:
        return TinyShape(layers=self.layers)


def cold_start(
    folder: Path,
    recipe: Recipe,
    *,
    threads: int | None = None,
    force: bool = False,
    log: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> bool:
    """Make the model in `folder`. Returns False when the same recipe is there already and was left alone.

    `progress` gets each step and its loss (nats per token). Raises ModelError when the folder holds something else.
    """
    try:
        put_back(folder)
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror}") from None
    if not force and (existing := _existing(folder)) is not None:
        if _of_recipe(existing) == asdict(recipe) and _intact(folder, existing):
            log(f"{folder} already holds this model (same recipe); nothing to build")
            return False
        raise ModelError(f"{folder} holds a model of another recipe, or a changed one; use --force to build it again")
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:  # before the minute of work, not after it
        if not force and folder.exists() and any(folder.iterdir()):
            raise ModelError(f"{folder} is not empty and holds no cold-start model; give another folder")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        temporary.rmdir()
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror}") from None
    if threads is not None:
        torch.set_num_threads(threads)
    began = time.perf_counter()
    model, tokenizer = make_tiny(seed=recipe.seed, shape=recipe.shape)
    problems, _ = demo_split(recipe.split_seed)
    loss = _teach(model, tokenizer, problems, recipe, progress)

    temporary.mkdir()
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    provenance = {
        "method": "supervised cold start on worked two-digit additions, from random weights",
        "recipe": asdict(recipe),
        "shape": asdict(recipe.shape),
        "data": {
            "source": "grpo_core.data.arithmetic.demo_split (training part; held-out problems never shown)",
            "problems": len(problems),
            "problems_digest": problems_digest(problems),
        },
        "optimizer": {
            "name": "AdamW",
            "peak_lr": PEAK_LR,
            "schedule": f"{_WARMUP_STEPS} steps of warm-up, the last fifth falls to a tenth",
        },
        "final_loss": loss,
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - began, 1),
        "packages": package_versions(),
        "weights": {path.name: file_sha256(path) for path in sorted(temporary.glob("*.safetensors"))},
    }
    (temporary / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    publish_folder(temporary, folder)
    return True


def _teach(
    model: Any, tokenizer: Any, problems: list[Any], recipe: Recipe, progress: Callable[[int, float], None]
) -> float:
    """Next-token training on the completions alone; returns the last step's loss in nats per token."""
    encoder = PromptEncoder(tokenizer, PromptConfig())
    encoded = [
        (
            encoder.encode(problem).tokens,
            [*tokenizer(worked_completion(problem))["input_ids"], tokenizer.eos_token_id],
        )
        for problem in problems
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    random = np.random.default_rng([recipe.seed, 1])
    value = float("nan")
    for step in range(1, recipe.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * _schedule(step, recipe.steps)
        batch = [encoded[i] for i in random.integers(len(encoded), size=recipe.batch)]
        loss = -completion_logprobs(model, [p for p, _ in batch], [c for _, c in batch]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        progress(step, value)
    return value


def _schedule(step: int, steps: int) -> float:
    """Share of the peak rate. The rate never falls to 0: a model settled at a tiny rate sits where the larger steps of
    GRPO throw it out again."""
    decay = max(1.0, _DECAY_SHARE * steps)
    return min(step / _WARMUP_STEPS, 1.0, max(_FLOOR, (steps - step + 1) / decay))


def _existing(folder: Path) -> dict[str, Any] | None:
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        provenance = None
    if not isinstance(provenance, dict):
        raise ModelError(f"{path} is not a JSON object; use --force to build the model again")
    return provenance


def _of_recipe(provenance: dict[str, Any]) -> dict[str, Any]:
    """What `provenance` says, with the layers that all had before they could be chosen."""
    return {"layers": TinyShape.layers, **provenance.get("recipe", {})}


def _intact(folder: Path, provenance: dict[str, Any]) -> bool:
    weights: dict[str, str] = provenance.get("weights", {})
    return bool(weights) and all(
        (folder / name).is_file() and file_sha256(folder / name) == digest for name, digest in weights.items()
    )
