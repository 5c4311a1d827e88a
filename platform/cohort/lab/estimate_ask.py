"""Asks a worker to measure what a run of the form's config will take. Callers have decided who may."""

from collections.abc import Sequence

from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite, input_path
from cohort.lab.dispatch import job_on_commit
from cohort.lab.estimates import digest_of, measured_as
from cohort.lab.models import OPEN, JobKind, LabJob
from cohort.lab.services import room_demanded
from cohort.nodes.engines import gpus_needed, packages_needed, require_engines
from cohort.nodes.sandboxes import require_sandbox
from grpo_core.config.run import RunConfig
from grpo_core.rewards import Rubric


@transaction.atomic
def estimate_ask(
    *,
    project: Project,
    actor: User,
    config: RunConfig,
    base_model: BaseModel,
    dataset: PromptDataset,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion,
    suites: Sequence[ChosenSuite] = (),
    node_label: str = "",
) -> LabJob:
    """The job that measures it; the one that is under way already where there is one.

    `config` is of these rows (`cohort.launch.creation.run_config`). Raises ConfigError when no node has what it needs,
    or too many jobs wait.
    """
    rubric = Rubric(config.reward)
    packages = packages_needed(config)
    if rubric.needs_sandbox:
        require_sandbox(what="this estimate")
    require_engines(packages)
    Project.objects.select_for_update().get(pk=project.pk)
    digest = digest_of(config)
    under_way = LabJob.objects.filter(project=project, kind=JobKind.ESTIMATE, state__in=OPEN, cancel_asked=False)
    if (before := under_way.filter(config_digest=digest).order_by("-pk").first()) is not None:
        return before
    room_demanded(project)
    job = LabJob.objects.create(
        project=project,
        kind=JobKind.ESTIMATE,
        version=verifier_version,
        spec=rubric.config.model_dump(mode="json"),
        spec_digest=rubric.digest,
        dataset=dataset,
        base_model=base_model,
        config=measured_as(config).to_dict(),
        config_digest=digest,
        inputs=_inputs(config, dataset, eval_dataset, suites),
        needs={"gpus": gpus_needed(config), "packages": packages, "label": node_label},
        needs_sandbox=rubric.needs_sandbox,
        created_by=actor,
    )
    audit.log(
        actor=audit.who(actor),
        kind="lab_job_asked",
        subject=f"lab_job:{job.pk}",
        project=project,
        after={"kind": "estimate", "config_digest": digest, "version": verifier_version.pk, "dataset": dataset.sha256},
    )
    job_on_commit(job=job)
    return job


def _inputs(
    config: RunConfig, dataset: PromptDataset, eval_dataset: PromptDataset | None, suites: Sequence[ChosenSuite]
) -> list[dict[str, object]]:
    """The files that the config names, as a run's worker would fetch them."""
    wanted = {suite.path for suite in config.eval.suites}
    rows = {input_path(one): one for one in (dataset, eval_dataset) if one is not None}
    found: dict[str, dict[str, object]] = {}
    for path, row in rows.items():
        found[path] = {"path": path, "sha256": row.sha256, "size": row.size, "artifact": row.artifact}
    for chosen in suites:
        version = chosen.version
        path = f"inputs/{version.sha256}.jsonl"
        if path in wanted:
            found.setdefault(
                path, {"path": path, "sha256": version.sha256, "size": version.size, "artifact": version.artifact}
            )
    return list(found.values())
