"""The device that a process computes on."""

import torch

from grpo_core.errors import ModelError


def pick_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("engine.device is cuda, but PyTorch sees no GPU here; use auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
