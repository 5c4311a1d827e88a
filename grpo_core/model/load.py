"""Loads a policy or a reference, from a folder or from a pinned revision on the Hub.

Only safetensors are read and no code that comes with a model is ever run. A pickle may execute anything when it is
opened, so a folder that may hold one is refused (grpo_core.files.weights).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from grpo_core.compute.shape import Shape, routed_parameters, shape_of
from grpo_core.config.prompt import PromptConfig
from grpo_core.config.run import LoraConfig
from grpo_core.data.prompts import PromptEncoder
from grpo_core.errors import ModelError
from grpo_core.files.adapter import CONFIG as ADAPTER_CONFIG
from grpo_core.files.checkpoint import is_checkpoint
from grpo_core.files.weights import read_json_object
from grpo_core.model.attention import use_ours
from grpo_core.model.checkpoint import origin_config, overlay
from grpo_core.model.logprobs import last_logits
from grpo_core.model.quantize import quantized_loading
from grpo_core.model.source import ModelSource as ModelSource
from grpo_core.model.source import check_began, weight_files
from grpo_core.model.source import find_model as find_model

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # its bars would end up in every run's log

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class LoadedModel:
    """A causal language model with what is needed to sample from it and score with it."""

    model: Any
    """A transformers causal model, in eval mode (no dropout), on `device`."""
    tokenizer: Any
    eos_ids: frozenset[int]
    """Every id that ends a completion: those of the generation config, the config, the tokenizer and, once prompts are
    encoded, the chat template."""
    pad_id: int
    """Pads batches; never decides where a completion ends. Has a row in the embedding, whatever the tokenizer's is."""
    source: ModelSource
    device: torch.device
    adapters: LoraConfig | None = None
    """The adapters inside `model` (see `lora`); None when all of its weights are its own."""
    quantized: bool = False
    """Whether the weights of linear layers are in 4 bits (see `quantize`)."""
    layouts: dict[str, str] = field(default_factory=dict)
    """The layout chosen for this model, by the setting of engine.layout (see `resolve_layout`)."""
    unshared: str | None = None
    """Why layout auto is not shared for this model, in words; None where it is, or was not requested."""

    @property
    def context(self) -> int | None:
        """Most positions the model was made for, if it says so."""
        value = getattr(self.model.config, "max_position_embeddings", None)
        return int(value) if value else None

    @property
    def rows(self) -> int:
        """Rows of the input embedding: token ids from 0 to this, exclusive, can be read."""
        return embedding_rows(self.model)

    def encoder(self, prompts: PromptConfig) -> PromptEncoder:
        """Makes prompts as `prompts` says. What its chat template ends a turn with ends completions from then on, and a
        chat template that it brings is saved with the model."""
        encoder = PromptEncoder(self.tokenizer, prompts, rows=self.rows)
        if prompts.chat_template is not None:
            self.tokenizer.chat_template = prompts.chat_template
        self.eos_ids |= encoder.turn_ends()
        return encoder

    def parameters(self) -> int:
        """All of them, adapters included."""
        return sum(_numel(p) for p in self.model.parameters())

    def trainable(self) -> int:
        """Those that training changes."""
        return sum(_numel(p) for p in self.model.parameters() if p.requires_grad)

    def shape(self) -> Shape:
        """What its operations depend on."""
        adapters = self.trainable() if self.adapters is not None else 0
        head, embedding = self.model.get_output_embeddings(), self.model.get_input_embeddings()
        return shape_of(
            self.model.config.to_dict(),
            parameters=self.parameters() - adapters,
            adapters=adapters,
            own_head=head is not None and head.weight is not embedding.weight,
            routed=routed_parameters(
                (name, _numel(weight))
                for name, weight in self.model.named_parameters()
                if self.adapters is None or not weight.requires_grad
            ),
        )


def _numel(weight: torch.Tensor) -> int:
    """Of the whole weight, where only a part of it may be here (ZeRO 3), or two numbers a byte (NF4)."""
    return int(getattr(weight, "ds_numel", weight.numel())) * (2 if weight.dtype == torch.uint8 else 1)


def load_pretrained(
    folder: Path,
    model_class: Any,
    *,
    dtype: torch.dtype,
    quantized: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, Any, list[str]]:
    """(model, tokenizer, names of the tensors that the weights lack) of a transformers folder, by one of the
    AutoModelFor… classes, with `quantized` as `quantize.quantized_loading` returns it. `settings` take the place of
    those in config.json. Raises ModelError for anything missing, unreadable or unsafe."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a transformers model folder")
    if (folder / ADAPTER_CONFIG).exists():  # transformers would load these too, from a pickle as well
        raise ModelError(
            f"{folder} holds adapter_config.json: adapters next to the weights. Merge them into the weights first "
            "(peft: PeftModel.merge_and_unload), or take the file away if the base model is meant"
        )
    weight_files(folder)
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if quantized is not None and "quantization_config" in read_json_object(folder / "config.json"):
        raise ModelError(
            f"{folder} is quantised already, as its config.json says; set model.quantization: none, or take the model "
            "that it was made of"
        )
    try:
        config = AutoConfig.from_pretrained(folder, **safe, **settings)
        _check_padding(config, folder)
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            **safe,
            **(quantized or {}),
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"cannot load the model in {folder}: {error}") from error
    return model, load_tokenizer(folder), sorted(report["missing_keys"])


def _check_padding(config: Any, folder: Path) -> None:
    """Torch asserts it where the embedding is made."""
    pad, size = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
    if pad is not None and size is not None and pad >= size:
        raise ModelError(
            f"{folder}: its padding token {pad} is beyond the {size} tokens of its vocab_size; take pad_token_id out "
            "of config.json, or resize the embedding (transformers: resize_token_embeddings) and save the folder"
        )


def load_tokenizer(folder: Path) -> Any:
    """Raises ModelError."""
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load the tokenizer in {folder}: {error}") from error


@dataclass(frozen=True)
class ModelSettings:
    """What a model folder says next to its weights."""

    config: Any
    generation_config: Any

    @property
    def context(self) -> int | None:
        """Most positions the model was made for, if it says so."""
        value = getattr(self.config, "max_position_embeddings", None)
        return int(value) if value else None


def load_settings(folder: Path) -> ModelSettings:
    """Raises ModelError."""
    safe: dict[str, Any] = {"local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **safe)
        if (folder / "generation_config.json").is_file():
            return ModelSettings(config, GenerationConfig.from_pretrained(folder, **safe))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the settings of the model in {folder}: {error}") from error
    return ModelSettings(config, GenerationConfig.from_model_config(config))


def load_model(source: ModelSource, *, dtype: str, device: torch.device, quantization: str = "none") -> LoadedModel:
    """Load weights, with adapters merged into them, and tokenizer from `source`; with `quantization` nf4 the weights of
    linear layers in 4 bits, for a source without adapters. Raises ModelError for anything missing, odd or unsafe."""
    folder = source.folder
    check_began(source)
    if quantization == "nf4" and source.overlays:
        raise ModelError(
            f"{source.given} lies on top of {folder}, whose weights would be in 4 bits: make one model folder first, "
            "with grpo export, or set model.quantization: none"
        )
    quantized = quantized_loading(device) if quantization == "nf4" else None
    model, tokenizer, missing = load_pretrained(folder, AutoModelForCausalLM, dtype=_DTYPES[dtype], quantized=quantized)
    if missing:
        raise ModelError(
            f"the weights in {folder} are incomplete; {len(missing)} tensors are missing, first {missing[0]}"
        )
    for on_top in source.overlays:
        overlay(model, on_top)
    _take_template(tokenizer, source)
    use_ours(model)
    if quantized is None:  # else it is there already
        model.to(device)
    check_finite(model, folder)
    model.eval()  # stays so: dropout would make the sampling policy and the trained one differ
    eos_ids = frozenset[int]().union(*end_ids(model, tokenizer).values())
    pad_id = tokenizer.pad_token_id
    if pad_id is None or pad_id >= embedding_rows(model):
        pad_id = min((id_ for id_ in eos_ids if id_ < embedding_rows(model)), default=0)
    loaded = LoadedModel(model, tokenizer, eos_ids, int(pad_id), source, device, quantized=quantized is not None)
    check_head(loaded)
    return loaded


def load_source_tokenizer(source: ModelSource) -> Any:
    """As `load_model` would give it. Raises ModelError."""
    tokenizer = load_tokenizer(source.folder)
    _take_template(tokenizer, source)
    return tokenizer


def _take_template(tokenizer: Any, source: ModelSource) -> None:
    """The chat template that the run of a checkpoint brought stays with what it trained."""
    for checkpoint in filter(is_checkpoint, source.overlays):
        if (brought := origin_config(checkpoint).data.chat_template) is not None:
            tokenizer.chat_template = brought


def embedding_rows(model: Any) -> int:
    """Rows of a model's input embedding. ZeRO 3 keeps an empty tensor where the weight was, and its shape."""
    weight = model.get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def end_ids(model: Any, tokenizer: Any) -> dict[str, set[int]]:
    """The ids that end a completion, by where they are named. Phi and Gemma end with a second id that only the
    generation config knows, so all three count."""
    named = {
        "generation_config": model.generation_config.eos_token_id,
        "config": model.config.eos_token_id,
        "tokenizer": tokenizer.eos_token_id,
    }
    return {
        place: set() if ids is None else {ids} if isinstance(ids, int) else set(ids) for place, ids in named.items()
    }


def check_finite(model: Any, folder: Path) -> None:
    """A model with NaN or infinity in its weights computes nothing else."""
    bad = {
        name: count
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and (count := int((~torch.isfinite(weight)).sum()))
    }
    if bad:
        first = next(iter(bad))
        raise ModelError(
            f"the weights in {folder} hold NaN or infinity: {sum(bad.values()):,} numbers of {len(bad)} tensors, first "
            f"{first}. Take a copy from before the training that ruined them, or fetch the folder again"
        )


@torch.no_grad()
def check_head(loaded: LoadedModel) -> None:
    """Our own way through the output layer must give the model's logits; some families scale or cap them."""
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    ids_BT = torch.arange(4, device=loaded.device)[None] % vocabulary
    theirs_V = loaded.model(input_ids=ids_BT, use_cache=False).logits[0, -1].float()
    ours_V = last_logits(loaded.model, ids_BT)[0].float()
    if not torch.allclose(ours_V, theirs_V, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"{type(loaded.model).__name__} changes its logits in a way this trainer does not know "
            f"(largest difference {(ours_V - theirs_V).abs().max().item():.3g}); its log-probabilities would be wrong"
        )
