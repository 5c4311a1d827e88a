"""The matrices of a folder of LoRA adapters, and their sum with the weights below them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpo_core.errors import ModelError
from grpo_core.files.adapter import CONFIG, WEIGHTS, read_adapter_settings
from grpo_core.files.weights import check_model_file

PREFIX = "base_model.model."
"""Of the names in the file, before those of the model's layers."""


@dataclass(frozen=True)
class Adapter:
    """A and B of each layer, fp32."""

    rank: int
    alpha: float
    """The output is scaled by alpha / rank, whatever peft's setting is called."""
    layers: dict[str, tuple[Tensor, Tensor]]
    """(A, B) by the layer's name in the base model."""


def read_adapter(folder: Path) -> Adapter:
    """Raises ModelError for what is missing, damaged or no plain LoRA."""
    settings = read_adapter_settings(folder)
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has {CONFIG} and no {WEIGHTS}. Copy the whole folder")
    check_model_file(folder / WEIGHTS)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {folder / WEIGHTS}: {error}") from error
    return Adapter(settings.rank, settings.alpha, _layers(folder, tensors, settings.rank))


def _layers(folder: Path, tensors: dict[str, Tensor], rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        layer, _, part = key.removesuffix(".weight").rpartition(".")
        if not key.startswith(PREFIX) or part not in ("lora_A", "lora_B"):
            raise ModelError(f"{folder / WEIGHTS} holds {key}, which is no LoRA matrix. Merge the adapters with peft")
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{folder / WEIGHTS} holds NaN or infinity in {key}. Take an earlier copy")
        pairs.setdefault(layer.removeprefix(PREFIX), {})[part] = tensor.float()
    for name, pair in pairs.items():
        if len(pair) != 2 or len(pair["lora_A"]) != rank or pair["lora_B"].shape[1:] != (rank,):
            raise ModelError(
                f"{folder / WEIGHTS}: A and B of {name} are not both there with rank {rank}. Copy it again"
            )
    return {name: (pair["lora_A"], pair["lora_B"]) for name, pair in pairs.items()}


@torch.no_grad()
def merge(model: Any, adapter: Adapter, folder: Path) -> None:
    """W ← W + (alpha / rank)·B·A, summed in fp32. Raises ModelError where the adapters are of another model."""
    weights = dict(model.named_parameters())
    for name, (a, b) in adapter.layers.items():
        weight = weights.get(f"{name}.weight")
        if weight is None or weight.shape != (len(b), a.shape[1]):
            raise ModelError(f"{folder} is of another base model: it adapts {name}, which is not there in that shape")
        weight.copy_(weight.float() + (b @ a * (adapter.alpha / adapter.rank)).to(weight.device))
