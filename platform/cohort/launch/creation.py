"""Making a run: its config put together and checked, a draft, a launch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite, data_part, suite_part
from cohort.contamination import services as overlaps
from cohort.lab import estimates, gate, prompts
from cohort.nodes.engines import gpus_needed, packages_needed, require_engines, require_sandbox
from cohort.runs import dispatch
from cohort.runs.base_models import require_usable
from cohort.runs.limits import queue_full
from cohort.runs.models import Priority, Run, RunState, RunSuite, Sweep
from cohort.runs.preregistration import hypotheses_checked, record_preregistration
from cohort.runs.run_values import config_values_store
from cohort.runs.transitions import IllegalTransition, run_event, run_lock, run_logged, run_move
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.protocol.queues import LABEL, LABEL_RULE
from grpo_core.rewards import Rubric

CHOSEN = {
    "name": "the run's name",
    "model.path": "the base model",
    "model.revision": "the base model",
    "data.path": "the dataset",
    "data.format": "the dataset",
    "data.columns": "the dataset",
    "data.hub": "the dataset",
    "eval.path": "the held-out dataset",
    "eval.format": "the held-out dataset",
    "eval.columns": "the held-out dataset",
    "eval.hub": "the held-out dataset",
    "reward": "the reward",
    "eval.suites": "the suites",
    "eval.reward": "the held-out verifier",
}
"""Fields of a RunConfig that rows decide; settings may not set them."""


def run_config(
    *,
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion,
    eval_verifier_version: VerifierVersion | None = None,
    settings: Mapping[str, Any],
    suites: Sequence[ChosenSuite] = (),
) -> RunConfig:
    """The complete, checked config of a run made from these rows.

    `settings` is a nested part of RunConfig, such as {"preset": "dapo", "sampling": {"group_size": 8}, "seed": 1};
    what it leaves out comes from the preset, then from RunConfig. Suites are in the config in the order given.
    Raises ConfigError whose problems carry the dotted path of each faulty field.
    """
    refused = [
        FieldProblem(path, f"is decided by {what} that was chosen; leave it out of the settings")
        for path, what in CHOSEN.items()
        if _holds(settings, path)
    ]
    if refused:
        raise _config_error(refused)
    chosen: dict[str, Any] = {
        "name": name,
        "model": {"path": base_model.path, "revision": base_model.revision or None},
        "data": data_part(dataset),
        "reward": verifier_version.spec,
    }
    if eval_dataset is not None:
        chosen["eval"] = data_part(eval_dataset)
    if eval_verifier_version is not None:
        chosen["eval"] = {**chosen.get("eval", {}), "reward": eval_verifier_version.spec}
    if suites:
        chosen["eval"] = {**chosen.get("eval", {}), "suites": [suite_part(suite) for suite in suites]}
    config = RunConfig.from_dict(_merged(settings, chosen), source="this run")
    judge = Rubric(config.heldout_reward)
    unfit = [*_unfit(config, dataset, eval_dataset), *_columns_missing(Rubric(config.reward), dataset, field="dataset")]
    if eval_dataset is not None:
        unfit += _columns_missing(judge, eval_dataset, field="eval_dataset")
    elif eval_verifier_version is not None:
        unfit += _columns_missing(judge, dataset, field="eval_verifier_version")
    unfit += _adapters_unfit(config, base_model)
    if unfit:
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
    eval_verifier_version: VerifierVersion | None = None,
    settings: Mapping[str, Any] | RunConfig,
    suites: Sequence[ChosenSuite] = (),
    priority: int = Priority.NORMAL,
    node_label: str = "",
    cloned_from: Run | None = None,
    form_token: str = "",
    sweep: Sweep | None = None,
    hypotheses: str = "",
    api_call: Mapping[str, Any] | None = None,
) -> Run:
    """Check everything and store a draft. Raises ConfigError as `run_config` does, and for rows of another project.

    `settings` is as `run_config` takes it, or the config that it made of these very rows, which is not checked again;
    `node_label` is of nodes that may take the run, empty for any; `cloned_from` the run whose settings it began with;
    `sweep` the one that it is of; `hypotheses` what its people expect, a line each,
    registered at the launch; `api_call` what the history of the run says of the API call that made it;
    `form_token` of the form that was sent. The run that the same form has made already is returned as it is: a second
    click, or a request that was sent again, makes no other.
    """
    rows = {
        "base_model": base_model.project_id,
        "dataset": dataset.project_id,
        "eval_dataset": eval_dataset.project_id if eval_dataset else project.pk,
        "verifier_version": verifier_version.verifier.project_id,
        "eval_verifier_version": eval_verifier_version.verifier.project_id if eval_verifier_version else project.pk,
        "cloned_from": cloned_from.project_id if cloned_from else project.pk,
        **{f"eval.suites.{at}": suite.version.suite.project_id for at, suite in enumerate(suites)},
    }
    faults = [
        FieldProblem(field, f"does not belong to the project {project.name}")
        for field, owner in rows.items()
        if owner != project.pk
    ]
    if priority not in Priority.values:
        faults.append(FieldProblem("priority", f"is one of {', '.join(map(str, Priority.values))}, not {priority}"))
    if node_label and not LABEL.fullmatch(node_label):
        faults.append(FieldProblem("node_label", f"{node_label!r} can be no label: one takes {LABEL_RULE}"))
    try:
        hypotheses = hypotheses_checked(hypotheses)
    except ValidationError as error:
        faults.append(FieldProblem("hypotheses", error.messages[0]))
    if faults:
        raise _config_error(faults)
    if isinstance(settings, RunConfig):
        config = settings
    else:
        config = run_config(
            name=name,
            base_model=base_model,
            dataset=dataset,
            eval_dataset=eval_dataset,
            verifier_version=verifier_version,
            eval_verifier_version=eval_verifier_version,
            settings=settings,
            suites=suites,
        )
    if form_token:
        same = Run.objects.filter(project=lock_project(project), created_by=actor, form_token=form_token)
        made = same.filter(
            config_digest=config.digest(), priority=priority, node_label=node_label, hypotheses=hypotheses
        ).first()
        if made is not None:
            return made
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
        eval_verifier_version=eval_verifier_version,
        steps_total=config.optim.steps,
        priority=priority,
        node_label=node_label,
        gpus=gpus_needed(config),
        needs_sandbox=any(Rubric(reward).needs_sandbox for reward in (config.reward, config.heldout_reward)),
        needs_packages=packages_needed(config),
        cloned_from=cloned_from,
        hypotheses=hypotheses,
        form_token=form_token,
        sweep=sweep,
        created_by=actor,
    )
    run.parsed_config = config
    config_values_store(run_id=run.pk)
    RunSuite.objects.bulk_create(RunSuite(run=run, version=suite.version) for suite in suites)
    data = {"config_digest": run.config_digest} | ({"cloned_from": cloned_from.pk} if cloned_from else {})
    data |= api_call or {}
    run_event(run=run, actor=f"user:{actor.username}", kind="created", message="Run created", data=data)
    run_logged(run=run, actor=f"user:{actor.username}", kind="run_created", after={"name": run.name}, data=data)
    return run


@transaction.atomic
def run_submit(
    *,
    run: Run,
    actor: User,
    overlap_seen: str = "",
    probe_override: str = "",
    api_call: Mapping[str, Any] | None = None,
) -> None:
    """Put a draft into the queue and notify the workers on commit. Raises IllegalTransition, and ConfigError

    - when evaluation items are in the training data and `overlap_seen` does not confirm that a person has seen just
      that (`cohort.contamination.selectors.token`);
    - when the reward is known to reward wrong answers or was never probed (`cohort.lab.gate`), or nobody has checked
      the prompts (`cohort.lab.prompts`), and `probe_override` gives no reason for an override;
    - when the prompts do not fit, no node has the sandbox that its reward needs or the packages that its engine needs,
      or too many runs wait already.

    The margins that its evaluations will be judged by, and what was known of its reward, are in the audit log from then
    on, with `api_call` where one launched it.
    """
    if run_lock(run=run).state != RunState.DRAFT:  # another state may become queued too, but not by being submitted
        raise IllegalTransition(run.pk, RunState(run.state), RunState.QUEUED)
    if run.needs_sandbox:
        require_sandbox(what="this run")
    require_engines(run.needs_packages)
    require_usable(run.base_model)
    if full := queue_full(run):
        raise ConfigError(full, (FieldProblem("", full),))
    actor_name = f"user:{actor.username}"
    run_move(run=run, to=RunState.QUEUED, actor=actor_name)
    known = gate.figures(gate.gate(run.verifier_version, run.dataset))
    data = {"config_digest": run.config_digest, "margins": margins(run.config), "reward_probe": known}
    data |= api_call or {}
    run_logged(run=run, actor=actor_name, kind="run_submitted", data=data)
    record_preregistration(run=run)
    overlaps.record_launch_overlaps(run=run, actor=actor, seen=overlap_seen)
    gate.record_launch_probe(run=run, actor=actor, override=probe_override)
    prompts.record_launch_prompts(run=run, actor=actor, override=probe_override)
    estimates.record_launch_estimate(run=run, actor=actor)
    dispatch.train_on_commit(run=run)


def margins(config: Mapping[str, Any]) -> dict[str, float]:
    """Suite → the margin that its change is judged by; `heldout` is that of the held-out problems. A stored config
    may be of a version that had no suites."""
    evaluation = config["eval"]
    general = evaluation["margin"]
    by_suite = {"heldout": general}
    for suite in evaluation.get("suites") or ():
        own = suite.get("margin")
        by_suite[suite["name"]] = general if own is None else own
    return by_suite


@transaction.atomic
def run_launch(*, actor: User, overlap_seen: str = "", probe_override: str = "", **made: Any) -> Run:
    """Create, with all else as `run_create` takes it, and submit together, or neither."""
    run = run_create(actor=actor, **made)
    if run.state != RunState.DRAFT:  # the same form, launched before
        return run
    run_submit(run=run, actor=actor, overlap_seen=overlap_seen, probe_override=probe_override)
    return run


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


def _adapters_unfit(config: RunConfig, base_model: BaseModel) -> Iterator[FieldProblem]:
    """Adapters go on only as they are; the trainer, which also sees on which layers, would refuse it later."""
    adapter, lora = base_model.adapter, config.model.lora
    if adapter is None or config.model.adapter != "continue":
        return
    if (adapter["rank"], adapter["alpha"]) != (lora.rank, lora.alpha):
        yield FieldProblem(
            "model.lora.rank",
            f"{base_model.name} holds adapters of rank {adapter['rank']}, alpha {adapter['alpha']:g}; the run has rank "
            f"{lora.rank}, alpha {lora.alpha:g}. Set the same to train them further, or Adapters of the base: merge",
        )


def _columns_missing(rubric: Rubric, dataset: PromptDataset, *, field: str) -> Iterator[FieldProblem]:
    """A problem of `field`, the dataset's in the run form, for each field that not every problem has."""
    for column, component in sorted(rubric.columns.items()):
        having = dataset.columns.get(column, 0)
        if having < dataset.problems:
            there = ", ".join(["prompt", *dataset.columns])
            lack = "has no field" if having == 0 else f"lacks, in {dataset.problems - having:,} problems, the field"
            yield FieldProblem(
                field,
                f"{lack} {column!r}, which the reward's component {component!r} reads; it has {there}. Choose another "
                "dataset or reward, or add the field to every line",
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
    """Settings with the chosen values merged into them. A part that is not a mapping stays, for the check to report."""
    merged = dict(settings)
    for key, value in chosen.items():
        part = settings.get(key, {})
        if not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(part, Mapping):
            merged[key] = {**part, **value}
    return merged
