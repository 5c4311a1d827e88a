"""The trained weights of a checkpoint that a run can resume from, put into the model that the run began from.

Nothing of the optimiser is read, and nothing is written: `grpo export` makes a model folder of the same.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpo_core.config.kinds import AnyConfig, config_from_whole
from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.checkpoint import POLICY, is_checkpoint, read_origin, verify_weights
from grpo_core.model.adapter import Adapter, merge, read_adapter

_MATRICES = {"lora_A": 0, "lora_B": 1}


def origin_config(checkpoint: Path) -> AnyConfig:
    """The config of the run that wrote it. Raises CheckpointError, ConfigError."""
    return config_from_whole(read_origin(checkpoint).config, source=f"the config in {checkpoint}")


def read_adapters(folder: Path) -> Adapter:
    """Of peft's folder, or of a checkpoint of a run that trained adapters. Raises ModelError, CheckpointError."""
    if not is_checkpoint(folder):
        return read_adapter(folder)
    lora = origin_config(folder).model.lora
    pairs: dict[str, dict[int, Tensor]] = {}
    for key, tensor in _trained(folder).items():
        layer, _, part = key.removesuffix(".weight").rpartition(".")  # the last part is the adapters' name in peft
        name, _, matrix = layer.rpartition(".")
        if part == "weight" or matrix not in _MATRICES:
            raise ModelError(f"{folder / POLICY} holds {key}, which is no LoRA matrix")
        pairs.setdefault(name, {})[_MATRICES[matrix]] = tensor.float()
    return Adapter(lora.rank, lora.alpha, {name: (pair[0], pair[1]) for name, pair in pairs.items()})


@torch.no_grad()
def overlay(model: Any, folder: Path) -> None:
    """Put the weights of a checkpoint, or of adapters, on top of `model`'s. Raises ModelError where they are of another
    model, and CheckpointError."""
    if not is_checkpoint(folder) or origin_config(folder).model.lora.rank:
        merge(model, read_adapters(folder), folder)
        return
    exact, weights = _trained(folder), dict(model.named_parameters())
    shapes = {name: weight.shape for name, weight in weights.items()}
    for name in sorted(exact.keys() | shapes.keys()):
        if name not in exact or exact[name].shape != shapes.get(name):
            raise ModelError(f"{folder} is of another model: {name} differs in name or shape")
    for name, weight in weights.items():
        weight.copy_(exact[name])


def _trained(folder: Path) -> dict[str, Tensor]:
    """fp32, by the policy's names. Raises CheckpointError."""
    verify_weights(folder)
    try:
        return load_file(folder / POLICY)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {folder / POLICY}: {error}") from None
