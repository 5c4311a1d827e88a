"""Requests a measurement from a worker: what a run of the form's config will take. Callers have decided who may."""

from collections.abc import Sequence

from django.db import transaction

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite, input_rows
from cohort.lab.estimates import digest_of, measured_as
from cohort.lab.models import OPEN, JobKind, LabJob
from cohort.lab.services import job_create, require_room
from cohort.nodes.engines import gpus_needed, packages_needed, require_engines, require_sandbox
from grpo_core.config.run import RunConfig
from grpo_core.rewards import Rubric


@transaction.atomic
def estimate_request(
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
    require_room(project)
    versions = (chosen.version for chosen in suites)
    return job_create(
        project=project,
        actor=actor,
        inputs=input_rows(config.to_dict(), (dataset, eval_dataset), versions),
        logged={"kind": "estimate", "config_digest": digest, "version": verifier_version.pk, "dataset": dataset.sha256},
        rubric=rubric,
        kind=JobKind.ESTIMATE,
        version=verifier_version,
        dataset=dataset,
        base_model=base_model,
        config=measured_as(config).to_dict(),
        config_digest=digest,
        needs={"gpus": gpus_needed(config), "needs_packages": packages, "node_label": node_label},
    )
