"""Reads a folder of LoRA adapters as peft writes it: adapter_config.json and adapter_model.safetensors.

What it cannot take over exactly is refused: other kinds of adapters, layers saved whole, ranks that differ from layer
to layer.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpo_core.errors import ModelError
from grpo_core.files.weights import check_model_file, read_json_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Of the names in the file, before those of the model's layers."""
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    "use_dora": (None, False),
    "fan_in_fan_out": (None, False),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
}
"""Settings of peft → the values with which its adapters are W·x + scale·B·A·x and nothing else."""


@dataclass(frozen=True)
class Adapter:
    """A and B of each layer, fp32."""

    rank: int
    alpha: float
    """The output is scaled by alpha / rank, whatever peft's setting is called."""
    layers: dict[str, tuple[Tensor, Tensor]]
    """(A, B) by the layer's name in the base model."""


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds adapters and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def adapter_files(folder: Path) -> list[Path]:
    """Those that decide a number."""
    return [folder / CONFIG, folder / WEIGHTS]


def read_adapter(folder: Path) -> Adapter:
    """Raises ModelError for what is missing, damaged or no plain LoRA."""
    settings = read_json_object(folder / CONFIG)
    for name, values in _PLAIN.items():
        if settings.get(name) not in values:
            raise ModelError(
                f"{folder}: {CONFIG} has {name} {settings.get(name)!r}, which is more than plain LoRA. Merge it with "
                "peft (PeftModel.merge_and_unload) and give the merged folder"
            )
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float) or alpha <= 0:
        raise ModelError(f"{folder}: {CONFIG} has r {rank!r} and lora_alpha {alpha!r}; both must be above 0")
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has {CONFIG} and no {WEIGHTS}. Copy the whole folder")
    check_model_file(folder / WEIGHTS)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {folder / WEIGHTS}: {error}") from error
    scale = math.sqrt(rank) if settings.get("use_rslora") else 1.0  # alpha / √rank (Kalajdzievski 2023)
    return Adapter(rank, float(alpha) * scale, _layers(folder, tensors, rank))


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
