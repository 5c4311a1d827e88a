"""The models that a job samples from, loaded; torch is loaded with them."""

from pathlib import Path
from typing import Any

from grpo_core.lab.job import JobModel

_ROWS_ON_CPU, _ROWS_ON_GPU = 64, 512
"""Completions sampled at the same time."""


def job_model(job_model: JobModel, base: Path, device: str) -> Any:
    """A LoadedModel that is not trained. Raises ModelError."""
    import torch

    from grpo_core.config.run import ModelConfig
    from grpo_core.model.load import find_model, load_model

    config = ModelConfig(path=job_model.path, revision=job_model.revision, dtype=job_model.dtype)
    model = load_model(find_model(config, base=base), dtype=job_model.dtype, device=torch.device(device))
    model.model.requires_grad_(False)
    return model


def rows_at_once(policy: Any) -> int:
    """How many completions of a LoadedModel are sampled at the same time."""
    return _ROWS_ON_CPU if policy.model.device.type == "cpu" else _ROWS_ON_GPU


def use_threads(threads: int | None) -> None:
    """CPU threads; None leaves all."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
