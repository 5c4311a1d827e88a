"""Makes a model folder of a GGUF file, with float32 weights equal to the numbers that the quantised ones stand for, the
file's tokenizer and its chat template. provenance.json keeps the quantisation and the file's SHA-256.

transformers reads the file. The model that it returns refuses to be saved as long as it counts as quantised, so its
weights move into a model made from the same config without that.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import ModelError
from grpo_core.files.checkpoint import publish_folder, temporary_of
from grpo_core.files.disk import need_room, raise_when_full
from grpo_core.files.weights import PROVENANCE
from grpo_core.text import format_bytes

_FAMILIES: Any = AutoModelForCausalLM  # its methods have no usable types
_MAGIC = b"GGUF"
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RuntimeError)
"""What gguf and transformers raise for a file that is cut or that they do not know."""


def import_gguf(file: Path, folder: Path, *, log: Callable[[str], None]) -> None:
    """Write `folder`, whole or not at all. Raises ModelError for a file that is no whole GGUF file of a causal language
    model, DiskFullError."""
    if folder.exists():
        raise ModelError(f"{folder} is there already; give --out a folder that is to be made")
    made_from = _facts(file)
    log(f"reading {file.name}: {format_bytes(file.stat().st_size)}, {made_from['quantisation']}")
    model, tokenizer = _read(file)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    log(f"writing {folder}: {sum(p.numel() for p in model.parameters()):,} weights, {format_bytes(size)}")
    temporary = temporary_of(folder)
    try:
        with raise_when_full(folder.parent, "the model folder"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            need_room(folder.parent, size, "the model folder")
            temporary.mkdir()
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            weights = {path.name: file_sha256(path) for path in sorted(temporary.glob("*.safetensors"))}
            text = json.dumps({**made_from, "weights": weights}, indent=2, ensure_ascii=False) + "\n"
            (temporary / PROVENANCE).write_text(text, encoding="utf-8")
            publish_folder(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after a failure


def _facts(file: Path) -> dict[str, Any]:
    """What provenance.json says of the file. Reads its header and the sizes of its tensors."""
    from gguf import GGUFReader

    if not file.is_file():
        raise ModelError(f"there is no file {file}")
    with file.open("rb") as handle:
        if handle.read(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"{file} is not a GGUF file: it does not begin with {_MAGIC.decode()}")
    try:
        reader = GGUFReader(file)
        sizes: Counter[str] = Counter()
        for tensor in reader.tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        fields = {name: reader.get_field(f"general.{name}") for name in ("name", "license")}
        stated = {name: str(field.contents()) for name, field in fields.items() if field is not None}
    except _UNREADABLE as error:
        raise ModelError(
            f"{file} is not a whole GGUF file ({format_bytes(file.stat().st_size)}; {error}). Copy it again"
        ) from None
    if not sizes:
        raise ModelError(f"{file} holds no weights")
    quantisation = sizes.most_common(1)[0][0]
    return {
        "method": f"{file.name}, a GGUF file quantised as {quantisation}, read as float32",
        "quantisation": quantisation,
        "weights_by_type": dict(sizes.most_common()),
        "source": {"file": file.name, "size": file.stat().st_size, "sha256": file_sha256(file)},
        **stated,
        "packages": {name: version(name) for name in ("transformers", "gguf")},
    }


@torch.no_grad()
def _read(file: Path) -> tuple[Any, Any]:
    """Model and tokenizer. Nothing is fetched, and no code that comes with a model runs."""
    given: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        quantised, report = _FAMILIES.from_pretrained(
            file.parent, dtype=torch.float32, output_loading_info=True, **given
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    except (*_UNREADABLE, ImportError) as error:
        raise ModelError(f"cannot read a causal language model from {file}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"the weights in {file} are incomplete; {len(missing)} are missing, first {missing[0]}")
    config = quantised.config
    for name in ("quantization_config", "_model_name_or_path"):
        config.__dict__.pop(name, None)
    model = _FAMILIES.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    for name in ("is_local", "local_files_only"):  # of this reading, not of the tokenizer
        tokenizer.init_kwargs.pop(name, None)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return model, tokenizer
