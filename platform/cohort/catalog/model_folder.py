"""What a folder of model weights holds, read by hand: no torch, no transformers, nothing in it is ever executed.

The folder is named by a person but lies below the models folder of the server, and stays there after every symbolic
link is resolved. Weights are safetensors only: every pickle can run code when it is loaded.
"""

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import rfc8785

from grpo_core.compute.shape import routed_parameters, shape_of
from grpo_core.errors import ModelError
from grpo_core.files.adapter import CONFIG as ADAPTER_CONFIG
from grpo_core.files.adapter import WEIGHTS as ADAPTER_WEIGHTS
from grpo_core.files.adapter import is_adapter, read_adapter_settings
from grpo_core.files.weights import PROVENANCE, check_indices, check_model_file, read_json_object, safetensors_header
from grpo_core.text import UNSTORABLE, refuse_unstorable

_HEADS = {"lm_head.weight", "embed_out.weight"}
"""Names of an output layer that has weights of its own; where none is there, it has the input embedding's."""


@dataclass(frozen=True)
class ModelFolder:
    path: str
    """Relative to the models folder, with forward slashes."""
    architecture: str
    parameters: int
    weights: dict[str, dict[str, Any]]
    """{file name: {size in bytes, sha256}}"""
    weights_digest: str
    provenance: dict[str, Any] | None
    shape: dict[str, Any] | None
    """As grpo_core.compute.shape has it; None of adapters."""
    adapter: dict[str, Any] | None
    """{rank, alpha, base, revision} of a folder of LoRA adapters, as `files.adapter.AdapterSettings` has them."""


def read_model_folder(models_folder: Path, relative: str) -> ModelFolder:
    """Check and hash the folder. Raises ModelError saying what is wrong and how to mend it."""
    folder = resolve_inside(models_folder, relative)
    try:
        return _read(models_folder, folder, relative)
    except OSError as error:
        name = Path(str(error.filename)).name if error.filename else relative
        raise ModelError(
            f"{name} cannot be read: {error.strerror or error}. Let the user that the web server runs as read it."
        ) from None


def _read(models_folder: Path, folder: Path, relative: str) -> ModelFolder:
    adapter = read_adapter_settings(folder) if is_adapter(folder) else None
    config = read_json_object(folder / "config.json") if adapter is None else {}
    root = models_folder.resolve()
    weights: dict[str, dict[str, Any]] = {}
    parameters, routed, own_head = 0, 0, False
    for file in sorted(folder.iterdir()):
        if UNSTORABLE.search(file.name):
            raise ModelError(f"The folder holds a file whose name is not UTF-8: {file.name!a}. Rename it.")
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(root):
            raise ModelError(f"{file.name} is a link that leads out of the models folder. Put the file itself there.")
        check_model_file(file)
        if file.suffix == ".safetensors":
            header = safetensors_header(file)
            sizes = {name: math.prod(entry["shape"]) for name, entry in header.items()}
            parameters += sum(sizes.values())
            routed += routed_parameters(sizes.items())
            own_head |= bool(_HEADS & header.keys())
            with file.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            weights[file.name] = {"size": file.stat().st_size, "sha256": digest}
    if not weights:
        raise ModelError(f"{relative} holds no .safetensors file, so there are no weights to start from.")
    check_indices(folder, weights)
    if adapter is not None and [*weights] != [ADAPTER_WEIGHTS]:
        raise ModelError(f"{relative} holds adapters as {', '.join(weights)}; expected {ADAPTER_WEIGHTS} alone.")
    if adapter is not None and UNSTORABLE.search(f"{adapter.base}{adapter.revision}"):
        raise ModelError(
            f"{relative} names its base model {adapter.base!a}, which is not UTF-8. Mend adapter_config.json."
        )
    named = config.get("architectures") or [config.get("model_type", "")]
    provenance = folder / PROVENANCE
    return ModelFolder(
        path=str(PurePosixPath(relative)),
        architecture=UNSTORABLE.sub("\ufffd", str(named[0]))[:120] if isinstance(named, list) and named else "",
        parameters=parameters,
        weights=weights,
        weights_digest=hashlib.sha256(rfc8785.dumps(weights)).hexdigest(),
        shape=shape_of(config, parameters=parameters, own_head=own_head, routed=routed).model_dump()
        if adapter is None and parameters
        else None,
        provenance=_provenance(provenance) if provenance.is_file() else None,
        adapter=None if adapter is None else asdict(adapter),
    )


def _provenance(file: Path) -> dict[str, Any]:
    """Kept as it is, and part of records: it must fit the database and canonical JSON."""
    stated = read_json_object(file)
    try:
        refuse_unstorable(stated)
        rfc8785.dumps(stated)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file.name} cannot go into a record: {error}. Mend the file or take it away.") from None
    return stated


def resolve_inside(models_folder: Path, relative: str) -> Path:
    """The folder that `relative` names, certainly below `models_folder`."""
    pieces = relative.split("/")
    if (
        not relative
        or any(piece in ("", ".", "..") or piece.startswith("~") for piece in pieces)
        or any(character in "\\%;#:" or not character.isprintable() for character in relative)
    ):
        raise ModelError(
            f"{relative!r} is not a folder's name. Give the folder relative to the models folder, such as "
            "team/model-0.5B: no leading slash, no '..', and none of \\ % ; # :"
        )
    folder = models_folder.joinpath(*pieces)
    try:
        resolved = folder.resolve()
        is_folder = resolved.is_dir()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{relative} cannot be read: {error}.") from None
    if not resolved.is_relative_to(models_folder.resolve()):
        raise ModelError(f"{relative} is a link that leads out of the models folder. Put the model itself there.")
    if not is_folder:
        raise ModelError(
            f"There is no folder {relative} in the server's models folder. Copy the model there first, or give a Hub "
            "repository (owner/name) with the commit as its revision."
        )
    return resolved


def folders_with_models(models_folder: Path) -> list[str]:
    """Every folder one or two levels down that holds a config.json, or adapters, to choose from; none that cannot be
    read."""
    folders = {
        config.parent.relative_to(models_folder).as_posix()
        for name in ("config.json", ADAPTER_CONFIG)
        for depth in ("*", "*/*")
        for config in models_folder.glob(f"{depth}/{name}")
    }
    return sorted(folders)
