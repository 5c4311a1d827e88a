"""Checkpoints in use: one registered as a base model, and the files of such a model that runs and jobs read.

A checkpoint that the platform does not hold is requested of the node that wrote it (`uploads` has how it arrives). What
is registered stays: `uploads` keeps its files, and `services.checkpoint_pin` refuses to let it go.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import rfc8785
from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.base.zip_stream import zip_chunks
from cohort.catalog.models import BaseModel
from cohort.catalog.services import base_model_store
from cohort.nodes.services import nodes_here
from cohort.runs.models import Checkpoint, Run
from cohort.runs.services import NotPossible, checkpoint_pin
from cohort.runs.stored_files import FileMissing, stored_file
from cohort.runs.transitions import run_event, run_lock, run_logged
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.files.adapter import CONFIG, WEIGHTS, AdapterSettings
from grpo_core.files.checkpoint import MANIFEST, POLICY, STATE, manifest_bytes, step_folder
from grpo_core.records.types import CheckpointManifest, FileEntry

OFFER_AGAIN = "Offer it again on its page under Base models"


_MODEL_FOLDER = re.compile(r"inputs/checkpoint-([0-9]{1,18})")


@dataclass(frozen=True)
class ModelFile:
    """A checkpoint's file that the platform holds, as the input of a run or job."""

    run_id: int
    """Run that the checkpoint is of."""
    sha256: str
    size: int
    name: str


def model_folder(checkpoint: Checkpoint) -> str:
    """Where the worker puts its files, relative to the directory of a run or job."""
    return f"inputs/checkpoint-{checkpoint.pk}"


def model_inputs(model: BaseModel) -> dict[str, ModelFile]:
    """The files that a run from this model reads, by path; empty for one that the worker has itself or fetches from the
    Hub. With those of the checkpoints that its own run began from, as far as they are needed."""
    inputs: dict[str, ModelFile] = {}
    checkpoint, covered = model.checkpoint, False
    while checkpoint is not None:
        run = checkpoint.run
        for name in _needed(checkpoint, covered=covered):
            entry = checkpoint.files[name]
            file = ModelFile(run.pk, entry["sha256"], entry["size"], name)
            inputs[f"{model_folder(checkpoint)}/{name}"] = file
        if checkpoint.final and CONFIG not in checkpoint.files:
            break  # a whole model
        covered = covered or not (checkpoint.final or _rank(run))
        checkpoint = run.base_model.checkpoint
    return inputs


def reward_checkpoints(rewards: Iterable[Mapping[str, Any] | None]) -> set[int]:
    """Ids of the checkpoints in the platform's own form of path (`model_folder`) that components of these rewards name;
    each reward is a RewardConfig as JSON."""
    paths = (
        component["params"].get("path") for reward in rewards if reward for component in reward.get("components", ())
    )
    matches = (_MODEL_FOLDER.fullmatch(path) for path in paths if isinstance(path, str))
    return {int(match[1]) for match in matches if match}


def rewards_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, ...]:
    """Of a run's config: its reward, and what judges its held-out problems."""
    return config.get("reward"), (config.get("eval") or {}).get("reward")


def reward_models(project_id: int, rewards: Iterable[Mapping[str, Any] | None]) -> list[BaseModel]:
    """The reward models in these rewards that runs of the project trained, as registered."""
    if not (numbers := reward_checkpoints(rewards)):
        return []
    models = BaseModel.objects.filter(project=project_id, checkpoint__in=numbers)
    return list(models.select_related("checkpoint__run").order_by("pk"))


def reward_model_inputs(project_id: int, rewards: Iterable[Mapping[str, Any] | None]) -> dict[str, ModelFile]:
    """The files of these rewards' models that a run or job reads, by path."""
    models = reward_models(project_id, rewards)
    return {path: file for model in models for path, file in model_inputs(model).items()}


def require_reward_models(
    project: Project, rewards: Sequence[Mapping[str, Any] | None], *, field: str = "reward"
) -> None:
    """Raises ConfigError at `field` where a reward's model is archived or not here yet, or is no registered checkpoint
    of the project."""
    models = reward_models(project.pk, rewards)
    if lacking := sorted(reward_checkpoints(rewards) - {model.checkpoint_id for model in models}):
        why = f"the reward names checkpoint {lacking[0]}, which is no registered checkpoint of {project.name}"
        raise ConfigError(why, (FieldProblem(field, why),))
    for model in models:
        require_usable(model, field=field)


def _needed(checkpoint: Checkpoint, *, covered: bool) -> Iterator[str]:
    """`covered`: all weights are those of a checkpoint above it, and this one only leads to the model below it."""
    if checkpoint.final:
        yield from (name for name in checkpoint.files if "/" not in name)
    else:
        yield from (STATE,) if covered else (STATE, POLICY)


def _rank(run: Run) -> int:
    return int(run.config["model"]["lora"]["rank"])


def require_usable(model: BaseModel, *, field: str = "base_model") -> None:
    """Raises ConfigError at `field` for a model that is archived, or whose checkpoint has not arrived yet."""
    checkpoint = model.checkpoint
    if model.archived_at is not None:
        why = f"{model.name} is archived. {OFFER_AGAIN}, or choose another"
    elif checkpoint is not None and checkpoint.stored_at is None:
        why = f"{model.name} is not on the platform yet: {_arrival(checkpoint)}"
    else:
        return
    raise ConfigError(why, (FieldProblem(field, why),))


def _arrival(checkpoint: Checkpoint) -> str:
    node = checkpoint.attempt.node
    if checkpoint.requested_at is None:
        return f"its files could not be had from {node.name}. Request them again on the page of its run"
    if not nodes_here().filter(pk=node.pk).exists():
        return f"{node.name}, which has its files, is not here now. They come once its worker runs again"
    return f"{node.name} sends its files. Launch once they are here"


# ---------------------------------------------------------------------- registered


def suggested_name(checkpoint: Checkpoint) -> str:
    end = " final" if checkpoint.final else f" step {checkpoint.step}"
    return checkpoint.run.name[: 120 - len(end)] + end


@transaction.atomic
def checkpoint_model(*, checkpoint: Checkpoint, actor: User) -> BaseModel:
    """The base model that the checkpoint is registered as; where it is not, it is now, under `suggested_name` or
    another that is free. Raises NotPossible."""
    run_lock(run=checkpoint.run)  # of two at once the second reads what the first made
    model = BaseModel.objects.filter(checkpoint=checkpoint).select_related("checkpoint").first()
    if model is not None:
        return model
    name = suggested_name(checkpoint)
    if BaseModel.objects.filter(project=checkpoint.run.project_id, name=name).exists():
        name = f"{name[:90]} (checkpoint {checkpoint.pk})"
    return checkpoint_register(checkpoint=checkpoint, actor=actor, name=name)


@transaction.atomic
def checkpoint_register(*, checkpoint: Checkpoint, actor: User, name: str) -> BaseModel:
    """Register a checkpoint as a base model of its project, pin it, and request its files where they are not here.

    Raises ValidationError on `name`, and NotPossible for one that is registered already, or that can be had nowhere.
    """
    run = run_lock(run=checkpoint.run)
    checkpoint.refresh_from_db()
    if (before := BaseModel.objects.filter(checkpoint=checkpoint).first()) is not None:
        raise NotPossible(f"it is registered as {before.name} already", code="already_registered")
    if checkpoint.stored_at is None:
        checkpoint_request(checkpoint=checkpoint, actor=actor)
    elif not checkpoint.final:
        checkpoint_pin(checkpoint=checkpoint, actor=actor, pinned=True)
    if POLICY not in checkpoint.files and not checkpoint.final:
        raise NotPossible(f"it holds no {POLICY}, so there are no weights to start from", code="no_weights")
    weights, adapter = {file: checkpoint.files[file] for file in weight_files(checkpoint)}, _adapter(checkpoint)
    model = BaseModel(
        project=run.project,
        created_by=actor,
        name=name.strip(),
        path=model_folder(checkpoint),
        checkpoint=checkpoint,
        architecture=run.base_model.architecture,
        parameters=_parameters(run) if adapter is None else None,
        shape=run.base_model.shape if adapter is None else None,
        weights=weights,
        weights_digest=hashlib.sha256(rfc8785.dumps(weights)).hexdigest(),
        adapter=adapter,
    )
    base_model_store(model=model, actor=actor)
    data = {"checkpoint": checkpoint.pk, "step": checkpoint.step, "base_model": model.pk}
    words = f"{_called(checkpoint)} registered as the base model {model.name}"
    run_event(run=run, actor=audit.who(actor), kind="checkpoint_registered", message=words, data=data)
    return model


def weight_files(checkpoint: Checkpoint) -> list[str]:
    """Names of the files that hold the trained weights."""
    if not checkpoint.final:
        return [POLICY]
    return sorted(name for name in checkpoint.files if name.endswith(".safetensors") and "/" not in name)


def _parameters(run: Run) -> int | None:
    manifest = run.newest_manifest()
    return None if manifest is None else int(manifest["model"]["parameters"])


def _adapter(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """As `BaseModel.adapter` has it, where the checkpoint holds adapters alone."""
    run = checkpoint.run
    if not _rank(run) or (checkpoint.final and WEIGHTS not in checkpoint.files):
        return None
    lora, base = run.config["model"]["lora"], run.base_model
    return asdict(AdapterSettings(lora["rank"], lora["alpha"], base.path, base.revision or None))


def _called(checkpoint: Checkpoint) -> str:
    return "Final weights" if checkpoint.final else f"Checkpoint at step {checkpoint.step:,}"


# ---------------------------------------------------------------------- downloaded


def checkpoint_zip(checkpoint: Checkpoint, signatures: Mapping[str, bytes]) -> tuple[str, Iterator[bytes]]:
    """Name and content of a zip of a stored checkpoint: one folder with all its files, and its `checkpoint.json`, as it
    lies in a run's directory; and next to them the files that sign them. Raises FileMissing, before the first byte."""
    folder = download_folder(checkpoint)
    files = {
        name: FileEntry(size=entry["size"], sha256=entry["sha256"]) for name, entry in sorted(checkpoint.files.items())
    }
    manifest = CheckpointManifest(
        step=checkpoint.step, path=checkpoint.path, files=files, final=checkpoint.final, best=checkpoint.best
    )
    contents: list[tuple[str, Iterable[bytes]]] = [(f"{folder}/{MANIFEST}", [manifest_bytes(manifest)])]
    for name, entry in files.items():
        held = stored_file(run_id=checkpoint.run_id, sha256=entry.sha256)
        if held is None:
            raise FileMissing(f"the platform no longer holds {name} of {_called(checkpoint).lower()}")
        contents.append((f"{folder}/{name}", held[1]))
    contents += [(f"{folder}/{name}", [content]) for name, content in sorted(signatures.items())]
    return f"{folder}.zip", zip_chunks(contents)


def download_folder(checkpoint: Checkpoint) -> str:
    end = "final" if checkpoint.final else step_folder(checkpoint.step)
    return f"run-{checkpoint.run_id}-{end}"


# ---------------------------------------------------------------------- requested


@transaction.atomic
def checkpoint_request(*, checkpoint: Checkpoint, actor: User) -> None:
    """Have the node that wrote it send its files, with its next heartbeat; a step's checkpoint is pinned until then and
    after. Requested again it changes nothing.

    Raises NotPossible where it is neither here nor on a node that is not revoked.
    """
    run = run_lock(run=checkpoint.run)
    checkpoint.refresh_from_db()
    if checkpoint.stored_at is not None or checkpoint.requested_at is not None:
        return
    node = checkpoint.attempt.node
    if checkpoint.removed_at is not None:
        raise NotPossible(
            f"it was removed from {node.name} to make room, and the platform does not hold it",
            code="checkpoint_removed",
        )
    if not nodes_here().filter(pk=node.pk).exists():
        raise NotPossible(
            f"the platform does not hold it, and {node.name}, where it was written, is not here now. Start its worker, "
            "or copy the weights into the models folder and register that folder",
            code="node_away",
        )
    if not checkpoint.final:
        checkpoint_pin(checkpoint=checkpoint, actor=actor, pinned=True)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(requested_at=Now())
    checkpoint.refresh_from_db()
    data = {"checkpoint": checkpoint.pk, "step": checkpoint.step, "node": node.name}
    words = f"{_called(checkpoint)} requested of {node.name}"
    run_event(run=run, actor=audit.who(actor), kind="checkpoint_requested", message=words, data=data)
    run_logged(run=run, actor=audit.who(actor), kind="checkpoint_requested", data=data)
