"""Making a run: its config put together and checked, a draft, a launch."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.contamination import services as overlaps
from cohort.lab import estimates, gate, prompts
from cohort.launch.configs import NO_FURTHER, FurtherData, config_error, rubrics_of, run_config
from cohort.nodes.engines import gpus_needed, packages_needed, require_engines, require_sandbox
from cohort.runs import dispatch
from cohort.runs.base_models import require_reward_models, require_usable, rewards_of
from cohort.runs.limits import queue_full
from cohort.runs.models import Priority, Run, RunDataset, RunState, RunSuite, Sweep
from cohort.runs.preregistration import hypotheses_checked, record_preregistration
from cohort.runs.run_values import config_values_store
from cohort.runs.transitions import IllegalTransition, run_event, run_lock, run_logged, run_move
from grpo_core.config.kinds import AnyConfig, steps_of
from grpo_core.config.stage import Kind, StageConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.protocol.queues import LABEL, LABEL_RULE


@transaction.atomic
def run_create(
    *,
    project: Project,
    actor: User,
    kind: Kind = "grpo",
    name: str,
    base_model: BaseModel,
    dataset: PromptDataset,
    further: FurtherData = NO_FURTHER,
    eval_dataset: PromptDataset | None = None,
    verifier_version: VerifierVersion | None = None,
    eval_verifier_version: VerifierVersion | None = None,
    settings: Mapping[str, Any] | AnyConfig,
    suites: Sequence[ChosenSuite] = (),
    priority: int = Priority.NORMAL,
    node_label: str = "",
    cloned_from: Run | None = None,
    form_token: str = "",
    sweep: Sweep | None = None,
    hypotheses: str = "",
    api_call: Mapping[str, Any] | None = None,
) -> Run:
    """Check everything and store a draft of this kind. Raises ConfigError as `run_config` does, and for rows of another
    project.

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
        **{name: row.project_id for name, row in further.named},
        "verifier_version": verifier_version.verifier.project_id if verifier_version else project.pk,
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
        raise config_error(faults)
    if isinstance(settings, StageConfig):
        config = settings
    else:
        config = run_config(
            kind=kind,
            name=name,
            base_model=base_model,
            dataset=dataset,
            further=further,
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
        kind=config.kind,
        config=config.to_dict(),
        config_digest=config.digest(),
        preset=getattr(config, "preset", None) or "",
        base_model=base_model,
        dataset=dataset,
        eval_dataset=eval_dataset,
        verifier_version=verifier_version,
        eval_verifier_version=eval_verifier_version,
        steps_total=steps_of(config, dataset.problems),
        priority=priority,
        node_label=node_label,
        gpus=gpus_needed(config),
        needs_sandbox=any(rubric.needs_sandbox for rubric in rubrics_of(config)),
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
    RunDataset.objects.bulk_create(
        RunDataset(run=run, role=name.partition(".")[0], position=at, dataset=row)
        for at, (name, row) in enumerate(further.named)
    )
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
    - when the reward, of a run that has one, is known to reward wrong answers or was never probed (`cohort.lab.gate`),
      or nobody has checked the prompts of a GRPO run (`cohort.lab.prompts`), and `probe_override` gives no reason for
      an override;
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
    require_reward_models(run.project, rewards_of(run.config))
    if full := queue_full(run):
        raise ConfigError(full, (FieldProblem("", full),))
    actor_name = f"user:{actor.username}"
    run_move(run=run, to=RunState.QUEUED, actor=actor_name)
    data = {"config_digest": run.config_digest, "margins": margins(run.config)}
    if run.has_samples:
        data["reward_probe"] = gate.figures(gate.gate(run.verifier_version, run.dataset))
    data |= api_call or {}
    run_logged(run=run, actor=actor_name, kind="run_submitted", data=data)
    record_preregistration(run=run)
    overlaps.record_launch_overlaps(run=run, actor=actor, seen=overlap_seen)
    if run.has_samples:
        gate.record_launch_probe(run=run, actor=actor, override=probe_override)
    prompts.record_launch_prompts(run=run, actor=actor, override=probe_override)
    estimates.record_launch_estimate(run=run, actor=actor)
    dispatch.train_on_commit(run=run)


def margins(config: Mapping[str, Any]) -> dict[str, float]:
    """Suite → the margin that its change is judged by; `heldout` is that of the held-out problems. A stored config
    may be of a version that had no suites; one of sampling evaluates nothing."""
    evaluation = config.get("eval")
    if evaluation is None:
        return {}
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
