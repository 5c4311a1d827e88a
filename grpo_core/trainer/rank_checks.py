"""Whether the ranks of a run read the same: config, model, problems, and the checkpoint that they resume from.

They exchange gradients and never weights, so ranks that began apart would train several policies and call them one.
Each machine reads its own files, which are another's only where the disk is shared.
"""

import hashlib
from pathlib import Path

from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import CheckpointError, ConfigError, DataError, GrpoError, ModelError
from grpo_core.files.checkpoint import MANIFEST, read_manifest, verify_checkpoint
from grpo_core.records.types import Manifest
from grpo_core.trainer.manifest import inputs_of

_CONFIG = "the config"


def check_inputs_alike(ranks: Ranks, manifest: Manifest) -> None:
    """Raise ConfigError, ModelError or DataError, on every rank, when one has other inputs than the first."""
    first, *others = ranks.gather({_CONFIG: manifest.config_digest, **inputs_of(manifest)})
    for rank, theirs in enumerate(others, start=1):
        differs = [what for what in first if first[what] != theirs[what]]
        if differs:
            raise _kind(differs[0])(_differ(ranks, rank, ", ".join(differs)))


def check_checkpoint_alike(ranks: Ranks, folder: Path) -> None:
    """Raise CheckpointError, on every rank, when one finds another checkpoint in `folder` than the first, or one that
    is not whole. The first rank has looked at its own when it was chosen; ranks of one machine read one disk."""

    def seal() -> str:
        if ranks.first_here and not ranks.main:
            verify_checkpoint(folder)
        else:
            read_manifest(folder)
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()

    first, *others = ranks.gather(ranks.together(seal))
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise CheckpointError(_differ(ranks, rank, f"the checkpoint {folder}"))


def _differ(ranks: Ranks, rank: int, what: str) -> str:
    return (
        f"{ranks.name(0)} and {ranks.name(rank)} do not read the same: {what}. Every machine of a run reads the same "
        "files at the same paths; put them on a disk that all share"
    )


def _kind(what: str) -> type[GrpoError]:
    if what == _CONFIG:
        return ConfigError
    return DataError if "problems" in what else ModelError
