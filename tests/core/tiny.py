"""A very small real model for tests of the torch half: made in code, loaded through the real loader."""

from pathlib import Path

import torch

from grpo_core.config.run import ModelConfig, RunConfig
from grpo_core.model.load import LoadedModel, find_model, load_model
from grpo_core.model.tiny import TinyShape, save_tiny

torch.set_num_threads(1)  # tensors this small lose time to every further thread

SHAPE = TinyShape(hidden=32, layers=2, heads=2, feed_forward=64, context=512)


def tiny_folder(folder: Path, *, seed: int = 0, shape: TinyShape = SHAPE) -> Path:
    save_tiny(folder, seed=seed, shape=shape)
    return folder


def load(folder: Path, *, dtype: str = "float32") -> LoadedModel:
    source = find_model(ModelConfig(path=str(folder)), base=Path("/"))
    return load_model(source, dtype=dtype, device=torch.device("cpu"))


def sharpen(policy: LoadedModel, factor: float = 2.5) -> LoadedModel:
    """Random weights give nearly even distributions; larger embeddings make some tokens likely, as in real use."""
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(factor)
    return policy


def config(**parts: object) -> RunConfig:
    """A config that fits the tiny model; parts are given as mappings. Only `eval.every` evaluates while training: by
    default the clock would decide."""
    base: dict[str, object] = {
        "model": {"path": "base"},
        "data": {"path": "train.jsonl"},
        "reward": {"components": [{"name": "answer", "kind": "exact", "params": {"extract": "whole"}}]},
        "sampling": {"group_size": 4, "prompts_per_step": 2, "max_completion_tokens": 8},
        "optim": {"steps": 2, "lr": 1e-3},
        "engine": {"threads": 1},
        "eval": {"before": False, "after": False},
    }
    whole = {**base, **parts}
    return RunConfig.from_dict({**whole, "eval": {"cost": 0, **whole["eval"]}})
