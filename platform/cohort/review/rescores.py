"""Re-scores: a run's stored samples scored again by another reward, on a worker, once the run has ended.

User code runs on the worker alone. `cohort.ingest.rescored` gives its worker the samples and stores their scores.
"""

from dataclasses import dataclass

from django.db import transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.accounts.quotas import lock_project
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.catalog.models import VerifierVersion
from cohort.catalog.run_inputs import input_path
from cohort.catalog.services import checked_rubric
from cohort.lab.gate import gate
from cohort.lab.models import JobKind, JobState
from cohort.lab.services import columns_missing, job_create, require_room
from cohort.nodes.engines import require_sandbox
from cohort.review.models import Group, Rescore, Sample
from cohort.review.rescore_figures import figures_of
from cohort.review.services import current_groups
from cohort.runs import dispatch
from cohort.runs.dispatch import SEAL_QUEUE
from cohort.runs.models import Run
from cohort.runs.transitions import WITH_A_RECORD, run_logged
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.lab.job import RescoreOptions
from grpo_core.rewards import Rubric

FIGURES_TASK = "cohort.review.rescore_figures"
MAX_REASON_CHARS = 2000


@dataclass(frozen=True)
class Cost:
    """What scoring with one component takes, for a person who is about to request it."""

    component: str
    text: str


def stored_samples(run: Run) -> QuerySet[Sample]:
    """Current samples whose texts are stored."""
    return Sample.objects.filter(group__in=current_groups(run).order_by().values("pk"), redacted_at=None)


def scored_groups(rescore: Rescore) -> QuerySet[Group]:
    """The groups that a re-score is of, in order."""
    return current_groups(rescore.run).filter(pk__lte=rescore.newest_group)


def costs(rubric: Rubric, samples: int) -> list[Cost]:
    """Of the components that run code, ask a judge or load weights; rules cost nothing worth a line."""
    lines = []
    for part in rubric.parts:
        name, params = part.component.name, part.params
        match part.kind.mode:
            case "judge":
                calls = samples * int(getattr(params, "votes", 1))
                limits = [
                    f"its budget ends at {limit:,} {unit}"
                    for unit in ("calls", "tokens")
                    if (limit := getattr(params, f"budget_{unit}", None)) is not None
                ]
                budget = "; ".join(limits) or "it has no budget"
                lines.append(Cost(name, f"{calls:,} calls of its judge at least; {budget}"))
            case "sandbox":
                lines.append(Cost(name, f"runs code {samples:,} times, in the sandbox of a worker"))
            case "model":
                lines.append(Cost(name, f"a model scores {samples:,} texts"))
    return lines


@transaction.atomic
def rescore_request(*, run: Run, version: VerifierVersion, actor: User, reason: str = "") -> Rescore:
    """Have a worker score the run's stored samples by this version of a reward. A reward that no probe has passed is
    taken too: nothing is trained with it.

    Raises ConfigError whose problems carry the field: `version` or `reason`; no field where the run has nothing to
    score, no node has the sandbox that the reward needs, or too many jobs wait.
    """
    rubric = checked_rubric(version.spec)
    if unfit := _unfit(run, version, rubric, reason):
        listed = "\n".join(f"  {problem}" for problem in unfit)
        raise ConfigError(f"the run cannot be scored again:\n{listed}", tuple(unfit))
    if rubric.needs_sandbox:
        require_sandbox(what="this re-score")
    project = lock_project(run.project)
    require_room(project)
    samples = stored_samples(run).count()
    newest = current_groups(run).order_by().aggregate(newest=Max("pk"))["newest"]
    if not samples:
        why = "the run has no stored samples: it kept none, or their texts were deleted"
        raise ConfigError(why, (FieldProblem("", why),))
    config = run.scored_config
    options = RescoreOptions(
        samples=samples,
        algorithm=config.algorithm,
        max_completion_tokens=config.sampling.max_completion_tokens,
        prefill=config.data.prefill,
    )
    job = job_create(
        project=project,
        actor=actor,
        inputs={input_path(run.dataset): run.dataset},
        logged={"kind": JobKind.RESCORE, "run": run.pk, "version": version.pk, "samples": samples},
        rubric=rubric,
        needs_sandbox=rubric.needs_sandbox,
        kind=JobKind.RESCORE,
        version=version,
        dataset=run.dataset,
        options=options.model_dump(mode="json"),
    )
    rescore = Rescore.objects.create(
        run=run,
        version=version,
        job=job,
        reason=storable(reason.strip()),
        by=actor,
        newest_group=newest,
        samples=samples,
    )
    known = gate(version, run.dataset)
    run_logged(
        run=run,
        actor=audit.who(actor),
        kind="rescore_requested",
        reason=rescore.reason,
        after={"version": version.pk, "spec_digest": rubric.digest, "samples": samples},
        data={"rescore": rescore.pk, "job": job.pk, "probe": known.state},
    )
    return rescore


def _unfit(run: Run, version: VerifierVersion, rubric: Rubric, reason: str) -> list[FieldProblem]:
    problems = []
    if run.state not in WITH_A_RECORD:
        problems.append(FieldProblem("", "the run has not ended; its samples are scored again once it has"))
    if version.verifier.project_id != run.project_id:
        problems.append(FieldProblem("version", f"does not belong to the project {run.project.name}"))
    for problem in columns_missing(run.dataset, rubric):
        problems.append(FieldProblem("version", f"of the run's dataset, {problem.message}"))
    if len(reason.strip()) > MAX_REASON_CHARS:
        long = f"the reason has {len(reason.strip()):,} characters; {MAX_REASON_CHARS:,} at most are taken"
        problems.append(FieldProblem("reason", long))
    return problems


# ---------------------------------------------------------------------- figures, once all is scored


def figures_on_commit(rescore: Rescore) -> None:
    dispatch.publish_on_commit(FIGURES_TASK, rescore.pk, SEAL_QUEUE)


def figures_republish() -> list[int]:
    """Request again the figures of re-scores that are done and have none. Returns their ids."""
    done = Rescore.objects.filter(job__state=JobState.DONE, figures__isnull=True)
    waiting = done.filter(job__finished_at__lt=Now() - dispatch.UNCLAIMED)
    ids = waiting.order_by("pk").values_list("pk", flat=True)
    return dispatch.republish(FIGURES_TASK, dict.fromkeys(ids, SEAL_QUEUE))


@transaction.atomic
def figures_store(rescore_id: int) -> None:
    """Work the figures out, unless they are there already or another process does. Takes up to a minute for a million
    samples."""
    waiting = Rescore.objects.filter(pk=rescore_id, job__state=JobState.DONE, figures__isnull=True)
    rescore = waiting.select_for_update(of=["self"], skip_locked=True).select_related("run__project", "version").first()
    if rescore is None:
        return
    figures = figures_of(rescore)
    Rescore.objects.filter(pk=rescore.pk).update(figures=figures)
    agreement = figures["agreement"]
    run_logged(
        run=rescore.run,
        actor="platform",
        kind="rescored",
        after={"samples": rescore.done, "agreement": agreement and agreement["share"]},
        data={"rescore": rescore.pk, "version": rescore.version_id},
    )
