"""Low-rank adapters (LoRA, Hu et al. 2021, section 4.1) inside the policy: a linear layer gives
W·x + (alpha / rank)·B·A·x, and only A and B are trained. With the adapters off the model is the base model, so no
other is loaded as reference.

The adapters are peft's layers, put into the transformers model itself, so all that it computes (hidden states,
sampling with its cache) goes through them. A starts uniform in ±1/√(inputs), as peft has it, drawn from a separate
seed; B starts at 0, so the policy starts as the base model exactly. Both are fp32 whatever the base is.

peft is imported where it is used: it takes two seconds, and most runs have no adapters. Nothing written is a pickle.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from grpo_core.config.run import LoraConfig, ModelConfig
from grpo_core.errors import ModelError
from grpo_core.files.adapter import CONFIG, WEIGHTS
from grpo_core.model.adapter import PREFIX, Adapter, merge
from grpo_core.model.checkpoint import read_adapters
from grpo_core.model.load import LoadedModel, ModelSource, check_head, load_model, load_pretrained
from grpo_core.model.source import check_began

NAME = "default"
"""What peft calls adapters that are given no name."""
ATTENTION_NAMES = ("attn", "attention")
"""Part of the names that families give the module around its attention projections: self_attn, attn, attention …"""


def load_policy(source: ModelSource, config: ModelConfig, *, device: torch.device, seed: int) -> LoadedModel:
    """The model to train: `load.load_model`, with adapters when `config.lora.rank` is above 0. Of a folder of adapters
    the same go on being trained, or with `config.adapter` merge are part of the weights first."""
    going_on = source.adapter is not None and config.adapter == "continue"
    if going_on:
        check_began(source)
    loaded = load_model(
        source.without_adapter if going_on else source,
        dtype=config.dtype,
        device=device,
        quantization=config.quantization,
    )
    loaded.source = source
    if going_on and not config.lora.rank:
        raise _other_settings(source, read_adapters(source.adapter), config.lora)  # type: ignore[arg-type]
    if config.lora.rank:
        add_adapters(loaded, config.lora, seed=seed)
    if going_on:
        _take_over(loaded, config.lora)
    return loaded


@torch.no_grad()
def _take_over(loaded: LoadedModel, lora: LoraConfig) -> None:
    """Give the adapters inside the model the values of those in the source's folder. Raises ModelError where they are
    of another rank, scale or set of layers."""
    assert loaded.source.adapter is not None
    adapter, layers = read_adapters(loaded.source.adapter), adapter_layers(loaded.model)
    if (adapter.rank, adapter.alpha) != (lora.rank, lora.alpha) or adapter.layers.keys() != layers.keys():
        raise _other_settings(loaded.source, adapter, lora)
    for name, (a, b) in adapter.layers.items():
        for weight, value in ((layers[name].lora_A[NAME].weight, a), (layers[name].lora_B[NAME].weight, b)):
            if weight.shape != value.shape:
                raise ModelError(f"{loaded.source.adapter} is of another base model: {name} has another shape")
            weight.copy_(value)


def _other_settings(source: ModelSource, adapter: Adapter, lora: LoraConfig) -> ModelError:
    last = sorted({name.rpartition(".")[2] for name in adapter.layers})
    return ModelError(
        f"{source.adapter} holds adapters of rank {adapter.rank}, alpha {adapter.alpha:g}, on {', '.join(last)} of "
        f"{len(adapter.layers)} layers in all; the config has model.lora.rank {lora.rank}, alpha {lora.alpha:g}, "
        f"targets {lora.targets}. Set the same to go on with them, or model.adapter: merge to train what they give"
    )


def add_adapters(loaded: LoadedModel, lora: LoraConfig, *, seed: int) -> None:
    """Put adapters into `loaded.model`; peft freezes everything else. Raises ModelError when no layer fits.

    The same seed gives the same adapters on every device; the global random state is left alone.
    """
    from peft import inject_adapter_in_model

    model = loaded.model
    chosen = chosen_layers(model, lora)
    with torch.random.fork_rng(devices=[]):  # peft draws first values, which are replaced below
        inject_adapter_in_model(_peft_config(loaded, lora, _shortest(model, chosen)), model, NAME)
    layers = adapter_layers(model)
    assert layers.keys() == set(chosen), "peft adapted other layers than those chosen"
    random = torch.Generator().manual_seed(seed)
    for layer in layers.values():
        a, b = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
        bound = 1 / math.sqrt(a.shape[1])
        for weight, value in ((a, torch.empty(a.shape).uniform_(-bound, bound, generator=random)), (b, b.float())):
            weight.data = value.to(weight.device)  # peft follows the base, and bf16 could not hold small updates
    loaded.adapters = lora
    check_head(loaded)


def adapter_layers(model: Any) -> dict[str, Any]:
    """peft's layers in `model` by the name of the layer that each one wraps."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """Inside, `model` is the base model, bit by bit. May be nested; ends well after an exception too."""
    layers = list(adapter_layers(model).values())
    if not layers:
        raise ValueError("the model has no adapters, so with them off it is no other model")
    was_on = [layer for layer in layers if not layer.disable_adapters]
    # peft's switch also decides what is trained, which must not change here.
    trained = [(p, p.requires_grad) for layer in was_on for p in layer.parameters()]
    try:
        for layer in was_on:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in was_on:
            layer.enable_adapters(True)
        for weight, flag in trained:
            weight.requires_grad_(flag)


@torch.no_grad()
def merged_state(model: Any) -> dict[str, Tensor]:
    """Weights of a model without adapters that computes the same, under the base model's names:
    W + (alpha / rank)·B·A, summed in fp32 and then rounded to W's type (in bf16 that loses some of a small change).

    Changed weights are new tensors in main memory, the others the model's own. The model itself is not touched.
    """
    layers = adapter_layers(model)
    merged: dict[str, Tensor] = {}
    for key, tensor in model.state_dict().items():
        owner, _, tail = key.partition(".base_layer.")
        if owner in layers and tail == "weight":
            layer = layers[owner]
            delta = layer.lora_B[NAME].weight.float() @ layer.lora_A[NAME].weight.float() * layer.scaling[NAME]
            merged[f"{owner}.weight"] = (tensor.float() + delta).to(tensor.dtype).cpu()
        elif owner in layers:
            merged[f"{owner}.{tail}"] = tensor
        elif key.partition(".lora_")[0] not in layers:
            merged[key] = tensor
    return merged


def merged_base(loaded: LoadedModel) -> Any:
    """The base model read again without quantisation, in main memory, with the adapters of `loaded` merged in: rounding
    to 4 bits is no part of what is saved. Raises ModelError."""
    assert loaded.adapters is not None
    folder = loaded.source.folder
    base, _, _ = load_pretrained(folder, AutoModelForCausalLM, dtype=loaded.model.dtype)
    matrices = {
        name: (layer.lora_A[NAME].weight.float().cpu(), layer.lora_B[NAME].weight.float().cpu())
        for name, layer in adapter_layers(loaded.model).items()
    }
    merge(base, Adapter(loaded.adapters.rank, loaded.adapters.alpha, matrices), folder)
    return base


def save_adapter(loaded: LoadedModel, folder: Path) -> None:
    """Write the adapters alone, fp32, the way peft's `PeftModel.from_pretrained(base, folder)` and vLLM load them."""
    layers = adapter_layers(loaded.model)
    assert loaded.adapters is not None
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{PREFIX}{name}.{part}.weight": getattr(layer, part)[NAME].weight.detach().float().cpu().contiguous()
        for name, layer in layers.items()
        for part in ("lora_A", "lora_B")
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = _peft_config(loaded, loaded.adapters, _shortest(loaded.model, list(layers))).to_dict() | {
        "inference_mode": True
    }
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    text = json.dumps(plain, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _peft_config(loaded: LoadedModel, lora: LoraConfig, targets: list[str]) -> Any:
    from peft import LoraConfig as PeftLoraConfig

    return PeftLoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=0.0,  # with dropout the sampling policy and the trained one would differ
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=loaded.source.given,
        revision=loaded.source.revision,
    )


def chosen_layers(model: Any, lora: LoraConfig) -> list[str]:
    """Names of the layers that get adapters."""
    output = model.get_output_embeddings()
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not output]
    if lora.targets == "all_linear":
        chosen = linear
    else:
        chosen = [name for name in linear if any(word in name for word in ATTENTION_NAMES)]
    if chosen:
        return chosen
    weighted = {
        f"{name.rpartition('.')[2]} ({type(module).__name__})"
        for name, module in model.named_modules()
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False))
    }
    raise ModelError(
        f"model.lora.targets {lora.targets} matches no layer of {type(model).__name__}; "
        f"its layers with weights are {', '.join(sorted(weighted))}. "
        + ("Use all_linear, or set" if linear else "Set")
        + " model.lora.rank to 0 to train all weights"
    )


def _shortest(model: Any, chosen: list[str]) -> list[str]:
    """The last parts of these names, as adapter files usually have it, when they mean these layers and no others."""
    lasts = {name.rpartition(".")[2] for name in chosen}
    meant = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in lasts]
    return sorted(lasts) if len(meant) == len(chosen) else sorted(chosen)
