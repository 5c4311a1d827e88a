"""Where a model lies, what it is made of, and the digests that name it: a folder of weights, adapters on such a folder,
or a checkpoint that a run can resume from, on the model that its run began from. Reads no weights into memory.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.config.run import ModelConfig
from grpo_core.data.fingerprint import file_sha256
from grpo_core.errors import ModelError
from grpo_core.files.adapter import adapter_files, is_adapter, read_adapter_settings
from grpo_core.files.checkpoint import WEIGHTS_FILES, is_checkpoint, read_origin
from grpo_core.files.weights import SUFFIXES, check_indices, check_model_file

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies on this machine, and where it came from."""

    folder: Path
    given: str
    revision: str | None = None
    adapter: Path | None = None
    """LoRA adapters that `given` names, as a folder of peft's or a checkpoint of a run that trained some; `folder` is
    then their base model."""
    checkpoint: Path | None = None
    """Checkpoint that `given` names, of a run that trained all weights; `folder` then gives settings and tokenizer."""
    below: tuple[Path, ...] = ()
    """Checkpoints and adapters between `folder` and `adapter`, lowest first."""
    began: "ModelSource | None" = None
    """What the run of the checkpoint began from; None where `given` names none."""

    @property
    def overlays(self) -> tuple[Path, ...]:
        """Checkpoints and adapters whose weights go on top of those of `folder`, lowest first."""
        if self.checkpoint is not None:
            return (self.checkpoint,)
        return self.below if self.adapter is None else (*self.below, self.adapter)

    @property
    def without_adapter(self) -> "ModelSource":
        """The model that the adapters lie on."""
        return replace(self, adapter=None, began=None)


def find_model(config: ModelConfig, *, base: Path) -> ModelSource:
    """The folder that `config.path` means: with a revision a download of that commit from the Hub, and nothing else;
    without one a folder next to the config file (`base`), then in $GRPO_MODELS. The folder may be a checkpoint.

    A folder of the same name never replaces a pinned commit. Raises ModelError that names every path looked at.
    """
    if config.revision is not None:
        return _from_hub(config.path, config.revision)
    given = Path(config.path).expanduser()
    folders = [given] if given.is_absolute() else [base / given]
    if not given.is_absolute() and (models := os.environ.get("GRPO_MODELS")):
        folders.append(Path(models) / given)
    for folder in folders:
        if folder.is_dir() and is_adapter(folder):
            return _with_base(folder.resolve(), config.path, base)
        if folder.is_dir() and is_checkpoint(folder):
            return _of_checkpoint(folder.resolve(), config.path, base)
        if folder.is_dir():
            return ModelSource(folder.resolve(), config.path)
    looked = ", ".join(str(folder) for folder in folders)
    hint = "" if given.is_absolute() or "GRPO_MODELS" in os.environ else " (the variable GRPO_MODELS is not set)"
    raise ModelError(
        f"no model folder {config.path!r}; looked at {looked}{hint}. "
        "For a model on the Hub, give model.revision (the commit) too."
    )


def _with_base(adapter: Path, given: str, base: Path) -> ModelSource:
    """The adapters' base model, by the name that their config has: next to them, else as any model."""
    settings = read_adapter_settings(adapter)
    name = settings.base
    near = adapter.parent / Path(name).expanduser()
    base_source = (
        ModelSource(near.resolve(), name)
        if near.is_dir()
        else find_model(ModelConfig(path=name, revision=settings.revision), base=base)
    )
    if base_source.adapter is not None or is_adapter(base_source.folder):
        raise ModelError(
            f"the base of the adapters in {adapter} is {name}, which holds adapters itself; merge those first"
        )
    return ModelSource(base_source.folder, given, base_source.revision, adapter, below=base_source.overlays)


def _of_checkpoint(checkpoint: Path, given: str, base: Path) -> ModelSource:
    """The model that the checkpoint's run began from is looked for as any model, then where that run had it. Raises
    ModelError, and CheckpointError for a checkpoint that cannot be read."""
    origin = read_origin(checkpoint)
    settings = ModelConfig.model_validate(origin.config["model"])
    try:
        began = find_model(settings, base=base)
    except ModelError as error:
        try:
            began = find_model(settings, base=Path(origin.base))
        except ModelError:
            raise ModelError(
                f"{checkpoint} needs the model that its run began from. {error} Put it there, or make a model folder: "
                f"grpo export {checkpoint} --out DIR --model FOLDER"
            ) from None
    if not settings.lora.rank:
        return ModelSource(began.folder, given, checkpoint=checkpoint, began=began)
    continued = began.adapter is not None and settings.adapter == "continue"  # the checkpoint then holds these itself
    below = began.below if continued else began.overlays
    return ModelSource(began.folder, given, adapter=checkpoint, below=below, began=began)


def _from_hub(repository: str, revision: str) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if not _COMMIT.fullmatch(revision):
        raise ModelError(
            f"model.revision {revision!r} is not a commit of 40 hex digits; a branch or tag may move, "
            "and the run could not be repeated"
        )
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=[f"*{suffix}" for suffix in SUFFIXES])
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"cannot get model {repository!r} at {revision} from the Hub: {error}") from None
    return ModelSource(Path(folder), repository, revision)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, sorted by name. Raises ModelError when there is none, and when a file
    may not be there (`check_model_file`). Files in folders below are never opened."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    try:
        for path in files:
            check_model_file(path)
        check_indices(folder, [path.name for path in weights])
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    if not weights:
        raise ModelError(f"{folder} holds no *.safetensors weights")
    return weights


# Digests of a model folder's files: what a manifest or a reward names a model by.

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
)
_TOKENIZER_MORE = ("merges.txt", "added_tokens.json", "chat_template.jinja")
_SETTINGS = ("config.json", "generation_config.json")
"""Of the model: rotary embedding, norms, tied weights, the ids that end a completion."""


def tokenizer_sha256(folder: Path) -> str:
    """One digest over the tokenizer's files."""
    return files_digest(_present(folder, (*_TOKENIZER_FILES, *_TOKENIZER_MORE)))


def vocabulary_sha256(tokenizer: Any) -> str:
    """One digest over a tokenizer's tokens with their ids: equal where two tokenizers give ids the same meaning,
    however their files are written."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def settings_sha256(folder: Path) -> str:
    """One digest over the files of a model's settings."""
    return files_digest(_present(folder, _SETTINGS))


def _present(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in names if (folder / name).is_file()}


def files_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of the lines `<sha256>  <name>`, sorted by name."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def dataset_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of a dataset's one file, or `files_digest` of several."""
    return next(iter(files.values())) if len(files) == 1 else files_digest(files)


def model_hashes(source: ModelSource) -> dict[str, Any]:
    """SHA-256 of all files of a model that decide a number: of its folder, and of what lies on top of it."""
    folder, top = source.folder, source.adapter or source.checkpoint
    key = "adapter" if source.adapter is not None else "checkpoint"
    below = source.below if source.adapter is not None else ()
    return {
        "weights": {path.name: file_sha256(path) for path in weight_files(folder)},
        "settings_sha256": settings_sha256(folder),
        "tokenizer_sha256": tokenizer_sha256(folder),
        **({key: _overlay_hashes(top)} if top is not None else {}),
        **({"below": {path.name: files_digest(_overlay_hashes(path)) for path in below}} if below else {}),
    }


def _overlay_hashes(overlay: Path) -> dict[str, str]:
    files = [overlay / name for name in WEIGHTS_FILES] if is_checkpoint(overlay) else adapter_files(overlay)
    return {path.name: file_sha256(path) for path in files}


def inputs_of_model(model: Mapping[str, Any]) -> dict[str, str]:
    """One digest for each part of what `model_hashes` gives, by its name in messages."""
    return {
        "the base model's weights": files_digest(model["weights"]),
        "the model's settings": model["settings_sha256"],
        "the tokenizer's files": model["tokenizer_sha256"],
        **({"the adapters": files_digest(model["adapter"])} if "adapter" in model else {}),
        **({"the checkpoint": files_digest(model["checkpoint"])} if "checkpoint" in model else {}),
        **({"what lies below the adapters": files_digest(model["below"])} if "below" in model else {}),
    }


def model_inputs(source: ModelSource) -> dict[str, str]:
    """The part of a run's inputs that its model gives."""
    return inputs_of_model(model_hashes(source))


def check_began(source: ModelSource) -> None:
    """Raises ModelError where a checkpoint lies on another model than its run began from. Of a checkpoint with all
    weights only settings and tokenizer are compared: nothing else of that model is used."""
    if source.began is None:
        return
    overlay = source.adapter or source.checkpoint
    assert overlay is not None
    origin, whole = read_origin(overlay), source.checkpoint is not None
    folder = source.folder
    there = (
        {"the model's settings": settings_sha256(folder), "the tokenizer's files": tokenizer_sha256(folder)}
        if whole
        else model_inputs(source.began)
    )
    differing = [what for what, digest in there.items() if origin.inputs.get(what) != digest]
    if differing:
        raise ModelError(
            f"{overlay} is a checkpoint of a run that began from another model than the one in {folder}: "
            f"{', '.join(differing)} differ. Put the right model at {origin.config['model']['path']}, or make a model "
            f"folder: grpo export {overlay} --out DIR --model FOLDER"
        )
    if not whole:
        check_began(source.began)
