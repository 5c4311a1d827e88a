"""What a person, or the platform itself, does to a run: create, submit, launch, cancel, sealed.

Each function checks, does one thing, and writes a RunEvent. Callers have already decided who may (`cohort.access`).
What workers do to a run is in `attempts` and `ingest`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.runs import dispatch
from cohort.runs.models import Run, RunEvent, RunState
from cohort.runs.models.run import Desired
from cohort.runs.transitions import ENDED, ON_A_WORKER, IllegalTransition, run_lock, run_move
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.rewards.rubric import Rubric

_CHOSEN = {
    "name": "the run's name",
    "model.path": "the base model",
    "model.revision": "the base model",
    "data.path": "the dataset",
    "data.format": "the dataset",
    "eval.path": "the held-out dataset",
    "eval.format": "the held-out dataset",
    "reward": "the reward",
}
"""Fields of a RunConfig that rows decide; settings may not."""


def input_path(dataset: PromptDataset) -> str:
    """Where the worker lays the dataset's file, relative to the run directory."""
    return f"inputs/{dataset.sha256}.jsonl"


def run_config(
    *,
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion,
    settings: Mapping[str, Any],
) -> RunConfig:
    """The complete, checked config of a run made from these rows.

    `settings` is a nested part of RunConfig, such as {"preset": "dapo", "sampling": {"group_size": 8}, "seed": 1};
    what it leaves out comes from the preset, then from RunConfig.
    Raises ConfigError whose problems carry the dotted path of each faulty field.
    """
    refused = [
        FieldProblem(path, f"is decided by {what} that was chosen; leave it out of the settings")
        for path, what in _CHOSEN.items()
        if _holds(settings, path)
    ]
    if refused:
        raise _config_error(refused)
    chosen: dict[str, Any] = {
        "name": name,
        "model": {"path": base_model.path, "revision": base_model.revision or None},
        "data": {"path": input_path(dataset), "format": dataset.format},
        "reward": verifier_version.spec,
    }
    if eval_dataset is not None:
        chosen["eval"] = {"path": input_path(eval_dataset), "format": eval_dataset.format}
    config = RunConfig.from_dict(_merged(settings, chosen), source="this run")
    Rubric(config.reward)
    if unfit := list(_unfit(config, dataset, eval_dataset)):
        raise _config_error(unfit)
    return config


@transaction.atomic
def run_create(
    *,
    project: Project,
    actor: User,
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None = None,
    verifier_version: VerifierVersion,
    settings: Mapping[str, Any],
) -> Run:
    """Check everything and store a draft. Raises ConfigError as `run_config` does, and for rows of another project."""
    rows = {
        "base_model": base_model.project_id,
        "dataset": dataset.project_id,
        "eval_dataset": eval_dataset.project_id if eval_dataset else project.pk,
        "verifier_version": verifier_version.verifier.project_id,
    }
    foreign = [
        FieldProblem(field, f"does not belong to the project {project.name}")
        for field, owner in rows.items()
        if owner != project.pk
    ]
    if foreign:
        raise _config_error(foreign)
    config = run_config(
        name=name,
        base_model=base_model,
        dataset=dataset,
        eval_dataset=eval_dataset,
        verifier_version=verifier_version,
        settings=settings,
    )
    run = Run.objects.create(
        project=project,
        name=config.name,
        config=config.to_dict(),
        config_digest=config.digest(),
        preset=config.preset or "",
        base_model=base_model,
        dataset=dataset,
        eval_dataset=eval_dataset,
        verifier_version=verifier_version,
        steps_total=config.optim.steps,
        created_by=actor,
    )
    _event(run, f"user:{actor.username}", "created", "Run created", {"config_digest": run.config_digest})
    return run


@transaction.atomic
def run_submit(*, run: Run, actor: User) -> None:
    """Put a draft into the queue and tell the workers once that is committed. Raises IllegalTransition."""
    run_move(run=run, to=RunState.QUEUED, actor=f"user:{actor.username}")
    dispatch.train_on_commit(run_id=run.pk)


@transaction.atomic
def run_launch(
    *,
    project: Project,
    actor: User,
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None = None,
    verifier_version: VerifierVersion,
    settings: Mapping[str, Any],
) -> Run:
    """Create and submit together, or neither."""
    run = run_create(
        project=project,
        actor=actor,
        name=name,
        base_model=base_model,
        dataset=dataset,
        eval_dataset=eval_dataset,
        verifier_version=verifier_version,
        settings=settings,
    )
    run_submit(run=run, actor=actor)
    return run


@transaction.atomic
def run_cancel(*, run: Run, actor: User, reason: str = "") -> None:
    """Cancel a waiting run at once; ask the worker of a live one to stop it. Asking again changes nothing.

    Raises IllegalTransition when the run has ended, or has been trained and waits only for its record.
    """
    run_lock(run=run)
    who = f"user:{actor.username}"
    if run.state in ON_A_WORKER:
        if run.desired == Desired.CANCEL:
            return
        run.desired, run.reason = Desired.CANCEL, reason
        run.save(update_fields=["desired", "reason"])
        _event(run, who, "cancel_asked", reason or "Cancel asked for; the worker stops the trainer", {})
        return
    if run.state == RunState.SEALING:
        raise IllegalTransition(run.pk, RunState.SEALING, RunState.CANCELLED)
    run_move(run=run, to=RunState.CANCELLED, actor=who, reason=_stopped(actor.username, "before it started", reason))


def cancel_reason(*, run: Run) -> str:
    """Why a run that was live is cancelled, for a person; empty when nobody asked for it."""
    asked = RunEvent.objects.filter(run=run, kind="cancel_asked").order_by("-id").first()
    if run.desired != Desired.CANCEL or asked is None:
        return ""
    when = f"after {run.step:,} step{'' if run.step == 1 else 's'}" if run.step else "before its first step"
    return _stopped(asked.actor.removeprefix("user:"), when, run.reason)


def _stopped(by: str, when: str, words: str) -> str:
    return f"Stopped by {by} {when}" + (f": {words}" if words else "")


@transaction.atomic
def run_sealed(*, run: Run) -> None:
    """The run's record is stored: a finished run becomes succeeded, every other ended one stays what it is.

    Told twice, as by a doubled message, it changes nothing.
    """
    run_lock(run=run)
    if run.state not in ENDED:
        run_move(run=run, to=RunState.SUCCEEDED, actor="platform")


def _event(run: Run, actor: str, kind: str, message: str, data: dict[str, Any]) -> None:
    RunEvent.objects.create(run=run, at=Now(), actor=actor, kind=kind, message=message, data=data)


def _unfit(config: RunConfig, dataset: PromptDataset, eval_dataset: PromptDataset | None) -> Iterator[FieldProblem]:
    """What is wrong between the config and the files it is to use."""
    taken = min(dataset.problems, config.data.limit or dataset.problems)
    if eval_dataset is None and config.eval.holdout >= taken:
        used = f"{dataset.problems:,} problems" + (f", of which {taken:,} are used" if taken < dataset.problems else "")
        yield FieldProblem(
            "eval.holdout",
            f"nothing would be left to train on: {dataset.name} has {used}; hold out fewer, or choose a held-out "
            "dataset",
        )
    if eval_dataset is not None and eval_dataset.sha256 == dataset.sha256:
        yield FieldProblem(
            "eval_dataset",
            "is the same file as the dataset to train on, so it would say nothing of new problems: choose another, "
            "or hold out some of the training problems",
        )


def _config_error(problems: list[FieldProblem]) -> ConfigError:
    listed = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"this run is not valid:\n{listed}", tuple(problems))


def _holds(settings: Mapping[str, Any], path: str) -> bool:
    here: Any = settings
    for piece in path.split("."):
        if not isinstance(here, Mapping) or piece not in here:
            return False
        here = here[piece]
    return True


def _merged(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the chosen values laid over them. A part that is not a mapping stays, for the check to name."""
    merged = dict(settings)
    for key, value in chosen.items():
        part = settings.get(key, {})
        if not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(part, Mapping):
            merged[key] = {**part, **value}
    return merged
