"""What a folder of LoRA adapters says of itself, as peft writes it: adapter_config.json and adapter_model.safetensors.
Loads no torch: trainer and platform read it.

What cannot be taken over exactly is refused: other kinds of adapters, layers saved whole, ranks that differ from layer
to layer.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError
from grpo_core.files.weights import read_json_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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
class AdapterSettings:
    """Of its adapter_config.json."""

    rank: int
    alpha: float
    """The output is scaled by alpha / rank, whatever peft's setting is called."""
    base: str
    """Folder or Hub id of the base model."""
    revision: str | None
    """Commit of a base model on the Hub."""


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds adapters and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def adapter_files(folder: Path) -> list[Path]:
    """Those that decide a number."""
    return [folder / CONFIG, folder / WEIGHTS]


def read_adapter_settings(folder: Path) -> AdapterSettings:
    """Raises ModelError for what is no plain LoRA or names no base model."""
    settings = read_json_object(folder / CONFIG)
    for name, values in _PLAIN.items():
        if settings.get(name) not in values:
            raise ModelError(
                f"{folder}: {CONFIG} has {name} {settings.get(name)!r}, which is more than plain LoRA. Merge it with "
                "peft (PeftModel.merge_and_unload) and give the merged folder"
            )
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ModelError(f"{folder}: {CONFIG} has r {rank!r} and lora_alpha {alpha!r}; both must be above 0")
    base, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(base, str) or not base:
        raise ModelError(f"{folder / CONFIG} names no base_model_name_or_path; write the base model's folder there")
    if revision is not None and not isinstance(revision, str):
        raise ModelError(f"{folder / CONFIG} has revision {revision!r}; expected the base model's commit, or null")
    scale = math.sqrt(rank) if settings.get("use_rslora") else 1.0  # alpha / √rank (Kalajdzievski 2023)
    return AdapterSettings(rank, float(alpha) * scale, base, revision)
