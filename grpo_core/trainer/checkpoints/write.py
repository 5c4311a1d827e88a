"""Writes checkpoints so that a reader finds a whole one or none, and reads their tensors back.

Two kinds: weights, a plain Hugging Face folder for everybody; and a state to resume from, for this trainer. Nothing in
either is a pickle. A model with adapters is written as one without, with the adapters' change in its weights, so that
nothing but transformers is needed to load it; the adapters alone lie in `adapter/` inside.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GenerationConfig

from grpo_core.errors import CheckpointError
from grpo_core.files.checkpoint import STATE, file_entries, publish_folder, temporary_of, write_manifest
from grpo_core.files.disk import fsync, need_room, raise_when_full
from grpo_core.model.load import LoadedModel
from grpo_core.model.lora import merged_base, merged_state, save_adapter
from grpo_core.records.types import CheckpointManifest
from grpo_core.runtime.fault_injection import fault
from grpo_core.trainer.checkpoints.state import RunState

ADAPTER = "adapter"
ROOM = 2.2
"""Free room that is required before a checkpoint is written, in its own size: the next one is written before an older
one is removed, and records need room too."""


def save_weights(
    folder: Path, policy: LoadedModel, *, step: int, run_folder: Path, merged: bool = True
) -> CheckpointManifest:
    """Write the policy as a folder that transformers and vLLM load, or its adapters alone where not `merged`.

    A completion ends where the run ended it. Sampling defaults of the base's generation_config are left out: the policy
    was not trained with them. Raises CheckpointError, DiskFullError."""

    whole = merged or policy.adapters is None
    if policy.model.can_generate():  # a reward model does not
        policy.model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            bos_token_id=policy.tokenizer.bos_token_id, eos_token_id=sorted(policy.eos_ids), pad_token_id=policy.pad_id
        )

    def fill(temporary: Path) -> None:
        if not whole:
            save_adapter(policy, temporary)
        elif policy.adapters is None:
            policy.model.save_pretrained(temporary)
        else:
            if policy.quantized:
                base = merged_base(policy)
                base.generation_config = policy.model.generation_config
                base.save_pretrained(temporary)
            else:
                policy.model.save_pretrained(temporary, state_dict=merged_state(policy.model))
            save_adapter(policy, temporary / ADAPTER)
        policy.tokenizer.save_pretrained(temporary)

    size = sum(_written(p, policy) for p in policy.model.parameters() if whole or p.requires_grad)
    return _write(folder, fill, size=size, step=step, run_folder=run_folder, final=True, best=False)


def _written(weight: Tensor, policy: LoadedModel) -> int:
    """Bytes of a weight as it is saved: one of 4 bits, two a byte, in the base model's own type."""
    packed = policy.quantized and not weight.is_floating_point()
    return 2 * weight.numel() * policy.model.dtype.itemsize if packed else weight.numel() * weight.element_size()


def save_state(
    folder: Path, parts: Mapping[str, Mapping[str, Tensor]], state: RunState, *, run_folder: Path, best: bool
) -> CheckpointManifest:
    """Write all that training needs to continue. Raises CheckpointError, DiskFullError."""
    text = state.model_dump_json()

    def fill(temporary: Path) -> None:
        for name, tensors in parts.items():
            write_tensors(temporary / f"{name}.safetensors", tensors)
            _synced(temporary / f"{name}.safetensors")
        (temporary / STATE).write_text(text, encoding="utf-8")
        _synced(temporary / STATE)

    size = sum(tensor.numel() * tensor.element_size() for part in parts.values() for tensor in part.values())
    return _write(folder, fill, size=size + len(text), step=state.step, run_folder=run_folder, final=False, best=best)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """The same bytes for the same tensors."""
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)


def load_parts(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of a verified checkpoint, by what they belong to. Raises CheckpointError."""
    try:
        return {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from None


def _write(
    folder: Path, fill: Callable[[Path], None], *, size: int, step: int, run_folder: Path, final: bool, best: bool
) -> CheckpointManifest:
    """Fill a temporary folder next to `folder`, make it durable, rename."""
    began = time.perf_counter()
    temporary = temporary_of(folder)
    what = f"the checkpoint {folder.name}"
    fault("checkpoint:begun")
    try:
        with raise_when_full(folder.parent, what):
            if temporary.exists():
                shutil.rmtree(temporary)
            folder.parent.mkdir(parents=True, exist_ok=True)
            need_room(folder.parent, int(ROOM * size), what)
            temporary.mkdir()
            fill(temporary)
            fault("checkpoint:filled")
            manifest = CheckpointManifest(
                step=step,
                path=folder.relative_to(run_folder).as_posix(),
                files=file_entries(temporary),
                final=final,
                best=best,
            )
            write_manifest(temporary, manifest)
            fault("checkpoint:manifest-written")
            publish_folder(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after a failure
    return manifest.model_copy(update={"seconds": time.perf_counter() - began})


def _synced(path: Path) -> None:
    fault(f"checkpoint:{path.name}-written")
    fsync(path)
    fault(f"checkpoint:{path.name}-synced")
