"""What people do with jobs of the reward lab: request one, call one off. What workers do to them is in `jobs`.

Callers have already decided who may (`cohort.web.access`). No reward is run here: a job is done by a worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import lock_project, over_project
from cohort.audit import services as audit
from cohort.base.storable import Refused
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.probe_cases import judged_texts
from cohort.catalog.run_inputs import ChosenSuite, input_path, input_rows, suite_part
from cohort.catalog.services import SpecInvalid, checked_rubric
from cohort.lab.estimates import digest_of, measured_as
from cohort.lab.jobs import job_on_commit
from cohort.lab.models import OPEN, Conversation, JobKind, JobState, LabJob
from cohort.lab.prompts import prompts_digest
from cohort.lab.turns import CALLED_OFF, answers_give_up
from cohort.nodes.engines import gpus_needed, packages_needed, require_engines, require_sandbox
from cohort.runs import base_models
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.lab.job import MAX_ITEMS, EvaluateOptions, LabKind, Options, TryOptions, options_of
from grpo_core.rewards import Rubric

OF_SAMPLES: frozenset[LabKind] = frozenset({"sample", "best_of_n"})
"""Kinds for which a base model answers problems of a dataset."""


class JobOver(Refused, code="job_over"):
    """The job has ended already."""


def require_room(project: Project) -> None:
    """Raises ConfigError when its limit of open jobs is reached. The project is the one that `lock_project` returned,
    so that those who request one at once are counted one after the other."""
    waiting = LabJob.objects.filter(project=project, state__in=OPEN).count()
    if full := over_project(project, "max_open_jobs", used=waiting):
        raise ConfigError(full, (FieldProblem("", full),))


@transaction.atomic
def job_request(
    *,
    project: Project,
    actor: User,
    kind: LabKind,
    spec: Mapping[str, Any] | None = None,
    version: VerifierVersion | None = None,
    dataset: PromptDataset | None = None,
    base_model: BaseModel | None = None,
    ground_truth: VerifierVersion | None = None,
    options: Mapping[str, Any] | None = None,
) -> LabJob:
    """Have a worker try a reward: a saved `version`, or the `spec` of a draft (a RewardConfig as JSON). A probe of a
    version is given its verifier's probe cases; a best-of-n is scored by `ground_truth`.

    Raises ConfigError whose problems carry the field: `components.…` for the spec's faults, `options.…`,
    `dataset`, `base_model`, `version`, `ground_truth`, or `reward` when no node has the sandbox that it needs.
    """
    if (spec is None) == (version is None):
        raise ValueError("give either a spec or a version")
    try:
        rubric = checked_rubric(dict(version.spec if version is not None else spec or {}))
    except SpecInvalid as invalid:
        listed = "\n".join(f"  {problem}" for problem in invalid.problems)
        raise ConfigError(f"the reward is not valid:\n{listed}", invalid.problems) from None
    given = dict(options or {})
    if kind == "probe" and version is not None:
        given["judged"] = [text.model_dump(mode="json") for text in judged_texts(version.verifier)]
    chosen = options_of(kind, given)
    of_best = kind == "best_of_n"
    truth = checked_rubric(ground_truth.spec) if of_best and ground_truth is not None else None
    unfit = _unfit(project, kind, rubric, chosen, version=version, dataset=dataset, base_model=base_model)
    if problems := [*unfit, *(_unfit_truth(project, ground_truth, dataset, truth) if of_best else ())]:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(f"this cannot be tried:\n{listed}", tuple(problems))
    needs_sandbox = rubric.needs_sandbox or (truth is not None and truth.needs_sandbox)
    if needs_sandbox:
        require_sandbox(what="this job")
    require_room(lock_project(project))
    model = base_model if kind in OF_SAMPLES else None
    return job_create(
        project=project,
        actor=actor,
        inputs={} if dataset is None else {input_path(dataset): dataset},
        logged={
            "kind": kind,
            "spec_digest": rubric.digest,
            "version": version.pk if version is not None else None,
            "dataset": dataset.sha256 if dataset is not None else None,
            "base_model": model.name if model is not None else None,
            **({"ground_truth": ground_truth.pk} if of_best and ground_truth is not None else {}),
        },
        rubric=rubric,
        needs_sandbox=needs_sandbox,
        kind=JobKind(kind),
        version=version,
        ground_truth=ground_truth if of_best else None,
        dataset=dataset,
        base_model=model,
        options=chosen.model_dump(mode="json"),
    )


@transaction.atomic
def config_job_request(
    *,
    kind: JobKind,
    project: Project,
    actor: User,
    config: RunConfig,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion,
    eval_verifier_version: VerifierVersion | None = None,
    suites: Sequence[ChosenSuite] = (),
    node_label: str = "",
) -> LabJob:
    """Have a worker measure what a run of the form's config will take (`kind` estimate), or show its exact tokens
    (preview). Returns the job; the one that is under way already where there is one.

    `config` is of these rows (`cohort.launch.configs.run_config`). Raises ConfigError when no node has what it needs,
    or too many jobs wait. A preview runs no reward and loads no weights, so any node has what it needs.
    """
    rubric = Rubric(config.reward)
    needs_sandbox = rubric.needs_sandbox or Rubric(config.heldout_reward).needs_sandbox
    needs: dict[str, Any] = {}
    if kind == JobKind.ESTIMATE:
        packages = packages_needed(config)
        if needs_sandbox:
            require_sandbox(what="this estimate")
        require_engines(packages)
        needs = {"gpus": gpus_needed(config), "needs_packages": packages, "node_label": node_label}
    project = lock_project(project)
    digest = digest_of(config)
    if (before := _under_way(project, kind, config_digest=digest)) is not None:
        return before
    require_room(project)
    versions = (chosen.version for chosen in suites)
    return job_create(
        project=project,
        actor=actor,
        inputs=input_rows(config.to_dict(), (dataset, eval_dataset), versions),
        logged={
            "kind": kind,
            "config_digest": digest,
            "version": verifier_version.pk,
            "dataset": dataset.sha256,
            **({"eval_version": eval_verifier_version.pk} if eval_verifier_version else {}),
        },
        rubric=rubric,
        kind=kind,
        needs_sandbox=needs_sandbox and kind == JobKind.ESTIMATE,
        version=verifier_version,
        dataset=dataset,
        base_model=base_model,
        config=measured_as(config).to_dict(),
        config_digest=digest,
        prompts_digest=prompts_digest(config) if kind == JobKind.PREVIEW else "",
        needs=needs,
    )


@transaction.atomic
def config_jobs_request(*, configs: Sequence[RunConfig], **of: Any) -> list[LabJob]:
    """One `config_job_request`, which takes `of`, for each config, or none."""
    return [config_job_request(config=config, **of) for config in configs]


@transaction.atomic
def doctor_request(*, base_model: BaseModel, actor: User) -> LabJob:
    """Have a worker look at a base model for what would make a run go wrong. Returns the job; the one that is under way
    already where there is one. Raises ConfigError when too many jobs wait."""
    project = lock_project(base_model.project)
    if (before := _under_way(project, JobKind.DOCTOR, base_model=base_model)) is not None:
        return before
    require_room(project)
    return job_create(
        project=project,
        actor=actor,
        inputs={},
        logged={"kind": JobKind.DOCTOR, "base_model": base_model.name},
        rubric=None,
        kind=JobKind.DOCTOR,
        base_model=base_model,
    )


@transaction.atomic
def evaluation_request(
    *,
    base_model: BaseModel,
    actor: User,
    versions: Sequence[EvalSuiteVersion] = (),
    dataset: PromptDataset | None = None,
    verifier_version: VerifierVersion | None = None,
    options: Mapping[str, Any] | None = None,
) -> LabJob:
    """Have a worker evaluate a base model on suites, and on the held-out problems of a dataset, which the reward
    judges. Raises ConfigError whose problems carry the field: `suites`, `dataset`, `version`, `options.…`."""
    project = base_model.project
    chosen = options_of("evaluate", dict(options or {}))
    assert isinstance(chosen, EvaluateOptions)
    rubric = None if verifier_version is None else checked_rubric(verifier_version.spec)
    own = {"dataset": dataset, "version": verifier_version and verifier_version.verifier}
    unfit = [*_foreign(project, own), *_unfit_evaluation(project, versions, dataset, rubric, chosen)]
    if unfit:
        listed = "\n".join(f"  {problem}" for problem in unfit)
        raise ConfigError(f"this cannot be evaluated:\n{listed}", tuple(unfit))
    if rubric is not None and rubric.needs_sandbox:
        require_sandbox(what="this evaluation")
    require_room(lock_project(project))
    suites = [suite_part(ChosenSuite(version)) for version in versions]
    config = {"eval": {"suites": suites}}
    return job_create(
        project=project,
        actor=actor,
        inputs=input_rows(config, (dataset,), versions),
        logged={
            "kind": JobKind.EVALUATE,
            "base_model": base_model.name,
            "suites": {version.suite.name: version.sha256 for version in versions},
            "dataset": dataset.sha256 if dataset is not None else None,
            "version": verifier_version.pk if verifier_version is not None else None,
        },
        rubric=rubric,
        needs_sandbox=rubric is not None and rubric.needs_sandbox,
        kind=JobKind.EVALUATE,
        version=verifier_version,
        dataset=dataset,
        base_model=base_model,
        suites=suites,
        options=chosen.model_dump(mode="json"),
    )


def _unfit_evaluation(
    project: Project,
    versions: Sequence[EvalSuiteVersion],
    dataset: PromptDataset | None,
    rubric: Rubric | None,
    chosen: EvaluateOptions,
) -> Iterator[FieldProblem]:
    if not versions and dataset is None:
        yield FieldProblem("suites", "choose a suite, or a dataset of held-out problems")
    names = [version.suite.name for version in versions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield FieldProblem("suites", f"two versions of {', '.join(twice)} are chosen; choose one")
    if any(version.suite.project_id != project.pk for version in versions):
        yield FieldProblem("suites", f"a suite does not belong to the project {project.name}")
    if dataset is not None and rubric is None:
        yield FieldProblem("version", "choose the reward that judges the held-out problems")
    if dataset is None and rubric is not None:
        yield FieldProblem("dataset", "choose the held-out problems that the reward judges, or leave the reward out")
    counts = [version.items for version in versions] + ([] if dataset is None else [dataset.problems])
    if (items := sum(min(count, chosen.limit or count) for count in counts)) > MAX_ITEMS:
        yield FieldProblem(
            "options.limit",
            f"{items:,} items are chosen, and {MAX_ITEMS:,} at most are taken: take the first ones only",
        )
    if dataset is not None and rubric is not None:
        yield from columns_missing(dataset, rubric)


def _foreign(project: Project, rows: Mapping[str, Any]) -> Iterator[FieldProblem]:
    for field, row in rows.items():
        if row is not None and row.project_id != project.pk:
            yield FieldProblem(field, f"does not belong to the project {project.name}")


def columns_missing(dataset: PromptDataset, rubric: Rubric) -> Iterator[FieldProblem]:
    for column, component in sorted(rubric.columns.items()):
        if (having := dataset.columns.get(column, 0)) < dataset.problems:
            count = f"{having:,} of {dataset.problems:,} problems have" if having else "no problem has"
            yield FieldProblem(
                "dataset",
                f"{count} the field {column!r}, which the component {component!r} reads; choose another dataset, "
                "or another reward",
            )


def _under_way(project: Project, kind: JobKind, **of: Any) -> LabJob | None:
    open_jobs = LabJob.objects.filter(project=project, kind=kind, state__in=OPEN, cancel_asked=False)
    return open_jobs.filter(**of).order_by("-pk").first()


def job_create(
    *,
    project: Project,
    actor: User,
    inputs: Mapping[str, PromptDataset | EvalSuiteVersion],
    logged: Mapping[str, Any],
    rubric: Rubric | None,
    **columns: Any,
) -> LabJob:
    """Have a worker do the job, once that is committed. `inputs`: the files that it reads, by path; those of its models
    and of its rewards' models come with them. Raises ConfigError where a model's files are not here yet."""
    files: dict[str, dict[str, Any]] = {
        path: {"path": path, "sha256": row.sha256, "size": row.size, "artifact": row.artifact}
        for path, row in inputs.items()
    }
    conversation: Conversation | None = columns.get("conversation")
    models = {"base_model": columns.get("base_model"), "reference": conversation.reference if conversation else None}
    rewards = _scored_by(rubric, columns)
    base_models.require_reward_models(project, rewards)
    held = base_models.reward_model_inputs(project.pk, rewards)
    for field, model in models.items():
        if model is not None:
            base_models.require_usable(model, field=field)
            held |= base_models.model_inputs(model)
    for path, file in held.items():
        files[path] = {"path": path, "sha256": file.sha256, "size": file.size, "run": file.run_id}
    job = LabJob.objects.create(
        project=project,
        spec={} if rubric is None else rubric.config.model_dump(mode="json"),
        spec_digest="" if rubric is None else rubric.digest,
        inputs=list(files.values()),
        created_by=actor,
        **columns,
    )
    subject = f"lab_job:{job.pk}"
    audit.log(actor=audit.who(actor), kind="lab_job_asked", subject=subject, project=project, after=logged)
    job_on_commit(job=job)
    return job


def _scored_by(rubric: Rubric | None, columns: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """The rewards that a job with these columns runs, each a RewardConfig as JSON; a preview runs none."""
    if columns["kind"] == JobKind.PREVIEW:
        return []
    truth: VerifierVersion | None = columns.get("ground_truth")
    return [
        None if rubric is None else rubric.config.model_dump(mode="json"),
        None if truth is None else truth.spec,
        *base_models.rewards_of(columns.get("config") or {}),
    ]


@transaction.atomic
def job_cancel(*, job: LabJob, actor: User) -> None:
    """Call a job off: at once where no worker has it; else its worker reads it with its next beat, and ends it. Raises
    JobOver when it has ended."""
    locked = LabJob.objects.select_for_update(of=["self"]).select_related("project").get(pk=job.pk)
    if locked.state == JobState.RUNNING:
        if locked.cancel_asked:
            return
        LabJob.objects.filter(pk=job.pk).update(cancel_asked=True)
    elif locked.state == JobState.WAITING:
        LabJob.objects.filter(pk=job.pk).update(
            state=JobState.CANCELLED, cancel_asked=True, finished_at=Now(), error_code="", error=""
        )
        answers_give_up(locked, CALLED_OFF)
    else:
        raise JobOver(f"it has ended already: {locked.get_state_display()}")
    audit.log(actor=audit.who(actor), kind="lab_job_cancelled", subject=f"lab_job:{job.pk}", project=locked.project)
    job.refresh_from_db()


def _unfit(
    project: Project,
    kind: LabKind,
    rubric: Rubric,
    chosen: Options,
    *,
    version: VerifierVersion | None,
    dataset: PromptDataset | None,
    base_model: BaseModel | None,
) -> Iterator[FieldProblem]:
    rows: dict[str, Any] = {"version": version and version.verifier, "dataset": dataset, "base_model": base_model}
    yield from _foreign(project, rows)
    of_rows = isinstance(chosen, TryOptions) and chosen.rows > 0
    if dataset is None and (kind in OF_SAMPLES or of_rows):
        yield FieldProblem("dataset", "choose the dataset whose problems are tried")
    if base_model is None and kind in OF_SAMPLES:
        yield FieldProblem("base_model", "choose the model that answers")
    if dataset is not None and not (kind == "try" and not of_rows):
        yield from columns_missing(dataset, rubric)


def _unfit_truth(
    project: Project, ground_truth: VerifierVersion | None, dataset: PromptDataset | None, truth: Rubric | None
) -> Iterator[FieldProblem]:
    if ground_truth is None:
        yield FieldProblem("ground_truth", "choose the reward that is taken for the truth, such as a rule")
        return
    yield from _foreign(project, {"ground_truth": ground_truth.verifier})
    if dataset is not None and truth is not None:
        yield from columns_missing(dataset, truth)
