"""A checkpoint's folder as files: its manifest, writing it whole, checking every byte. Loads no torch.

Trainer and worker share this; what the files mean to training is `checkpoints.state`'s. A folder under its own name is
whole or was changed afterwards, and `verify_checkpoint` finds out which. Nothing here reads what a file holds.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_core.errors import CheckpointError, ModelError
from grpo_core.files.disk import fsync
from grpo_core.files.weights import check_model_file
from grpo_core.records.types import CheckpointManifest, FileEntry
from grpo_core.runtime.fault_injection import fault

MANIFEST = "checkpoint.json"
STATE = "state.json"
"""What a checkpoint that a run can resume from holds besides its tensors."""
POLICY = "policy.safetensors"
"""The trained weights of a checkpoint that a run can resume from."""
WEIGHTS_FILES = (STATE, POLICY)
"""What such a checkpoint is read as a model by; everything else in it is for resuming."""
PINNED = "pinned.json"
"""Next to the checkpoints: steps whose checkpoints must stay, as a JSON list. The worker writes it: those that a person
wants kept, and the newest that the platform knows of, which alone another attempt can resume from."""


State = TypeVar("State", bound=BaseModel)


class _Sealed(BaseModel):
    """The manifest file: without its own digest, a changed byte in it could go unseen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: CheckpointManifest
    sha256: str


class CheckpointOrigin(BaseModel):
    """What state.json says of the model that its run began from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    config: dict[str, Any]
    """The run's whole config."""
    inputs: dict[str, str | None]
    """SHA-256 of what the run is based on, by its name in messages."""
    base: str
    """Folder that the config's relative paths start from, on the machine that wrote this."""


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder holds a checkpoint that a run can resume from, or what of it is needed as a model."""
    return (folder / STATE).is_file() and not (folder / "config.json").is_file()


def read_origin(folder: Path) -> CheckpointOrigin:
    """Raises CheckpointError."""
    return read_state_as(CheckpointOrigin, folder)


def read_state_as(kind: type[State], folder: Path) -> State:
    """The checkpoint's state.json, or the part of it that `kind` has. Raises CheckpointError."""
    try:
        return kind.model_validate_json((folder / STATE).read_bytes())
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: {STATE} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"checkpoint {folder}: {STATE} is of another version of Cohort: {location}: {first['msg']}"
        ) from None


def step_folder(step: int) -> str:
    """Name of the checkpoint after `step` steps, inside checkpoints/."""
    return f"step-{step:06d}"


def temporary_of(folder: Path) -> Path:
    """Where a checkpoint is written before it has its name, and goes before it is removed."""
    return folder.with_name(f".{folder.name}.tmp")


def step_folders(checkpoints: Path) -> dict[int, Path]:
    """The checkpoints that a run can resume from, whole or not, by step, oldest first."""
    folders = {
        int(path.name.removeprefix("step-")): path
        for path in checkpoints.glob("step-*")
        if path.is_dir() and path.name.removeprefix("step-").isdigit()
    }
    return dict(sorted(folders.items()))


@contextmanager
def pruning(checkpoints: Path) -> Iterator[bool]:
    """One lock for removing checkpoints and for naming those that must stay, so that no checkpoint is removed while
    it is being named. Yields whether it was acquired; it does not wait.
    """
    handle = os.open(checkpoints, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = True
    except BlockingIOError:
        mine = False
    try:
        yield mine
    finally:
        os.close(handle)


def sweep(checkpoints: Path) -> list[str]:
    """Remove what a killed trainer left half written or half removed; returns the names."""
    left = sorted(path for path in checkpoints.glob(".*.tmp") if path.is_dir())
    for path in left:
        shutil.rmtree(path)
    return [path.name for path in left]


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write `checkpoint.json`, which makes the folder a checkpoint. Not yet durable: see `publish_folder`."""
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read `checkpoint.json`. Raises CheckpointError when it is not there or not byte for byte as it was written."""
    try:
        content = (folder / MANIFEST).read_bytes()
        manifest = _Sealed.model_validate_json(content).manifest
    except OSError as error:
        raise CheckpointError(f"{folder} is not a finished checkpoint: {MANIFEST}: {error.strerror}") from None
    except ValidationError:
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} was changed; it cannot be read") from None
    if content != manifest_bytes(manifest):
        raise CheckpointError(f"checkpoint {folder}: {MANIFEST} was changed; its digest is not its own")
    return manifest


def verify_checkpoint(folder: Path) -> CheckpointManifest:
    """Check every byte of every file against `checkpoint.json`, and that none may be a pickle. Raises CheckpointError
    naming the first that differs."""
    manifest = read_manifest(folder)
    try:
        actual = file_entries(folder)
        actual.pop(MANIFEST, None)
        for name in sorted(manifest.files.keys() | actual.keys()):
            if manifest.files.get(name) != actual.get(name):
                state = (
                    "is missing" if name not in actual else "was added" if name not in manifest.files else "was changed"
                )
                raise CheckpointError(f"checkpoint {folder}: {name} {state}")
            check_model_file(folder / name)
    except ModelError as error:
        raise CheckpointError(f"checkpoint {folder}: {error} Cohort writes no such file.") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be read: {error}") from None
    return manifest


def verify_weights(folder: Path) -> None:
    """Check what a checkpoint is read as a model by: against `checkpoint.json` where that is there, which what a worker
    fetched has not, for each file was compared on its way. Raises CheckpointError."""
    try:
        there = {name: _entry(folder / name) for name in WEIGHTS_FILES}
        check_model_file(folder / POLICY)
    except (OSError, ModelError) as error:
        raise CheckpointError(f"checkpoint {folder} cannot be read as a model: {error}") from None
    if not (folder / MANIFEST).is_file():
        return
    manifest = read_manifest(folder)
    for name, entry in there.items():
        if manifest.files.get(name) != entry:
            raise CheckpointError(f"checkpoint {folder}: {name} was changed")


def file_entries(folder: Path) -> dict[str, FileEntry]:
    """Size and SHA-256 of every file below `folder`, by relative path."""
    return {path.relative_to(folder).as_posix(): _entry(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def publish_folder(temporary: Path, folder: Path) -> None:
    """Make `temporary` durable and give it its name. A folder already there is replaced; a kill on the way leaves it
    renamed, and `put_back` gives it its name again."""
    put_back(folder)
    for path in sorted(temporary.rglob("*")):
        fsync(path)
    fsync(temporary)
    fault("checkpoint:synced")
    if folder.exists():
        old = _old_of(folder)
        folder.rename(old)
        fault("replace:aside")
        temporary.rename(folder)
        fault("replace:renamed")
        shutil.rmtree(old)
    else:
        temporary.rename(folder)
    fault("checkpoint:renamed")
    fsync(folder.parent)
    fault("checkpoint:parent-synced")


def put_back(folder: Path) -> None:
    """Finish replacing `folder` after a kill: where neither version had its name, the old one gets it back."""
    old = _old_of(folder)
    if not old.exists():
        return
    if folder.exists():
        shutil.rmtree(old)
    else:
        old.rename(folder)


def _old_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old.tmp")


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint so that no reader finds half of it."""
    temporary = temporary_of(folder)
    folder.rename(temporary)
    fault("prune:renamed")
    shutil.rmtree(temporary)
    fault("prune:removed")


def manifest_bytes(manifest: CheckpointManifest) -> bytes:
    """Content of its `checkpoint.json`."""
    content = manifest.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (json.dumps({"manifest": content, "sha256": digest}, indent=2, sort_keys=True) + "\n").encode()


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as handle:
        return FileEntry(size=path.stat().st_size, sha256=hashlib.file_digest(handle, "sha256").hexdigest())
