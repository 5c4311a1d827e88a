"""The device that a process computes on."""

import torch

from grpo_core.errors import ModelError


def pick_device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ModelError("engine.device is cuda, but PyTorch sees no GPU here; use auto or cpu")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
