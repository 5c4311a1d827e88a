"""A preview of a run's tokens, and what the doctor reports of a base model, as pages show them."""

from typing import Any

from cohort.accounts.models import Project
from cohort.base.formatting import percent
from cohort.catalog.models import BaseModel, VerifierVersion
from cohort.lab.models import OPEN, JobKind, JobState, LabJob
from cohort.web.lab.charts import histogram_drawn
from cohort.web.lab.estimate_shown import job_of_config, why_waits
from grpo_core.lab.preview import Preview
from grpo_core.records.doctor import Diagnosis


def preview_shown(project: Project, job_id: str, digest: str) -> dict[str, Any] | None:
    """The preview for the form (`job_of_config`)."""
    job = job_of_config(project, JobKind.PREVIEW, job_id, digest)
    return None if job is None else shown(job, digest)


def shown(job: LabJob, digest: str) -> dict[str, Any]:
    """A preview for the template: under way, done, or ended otherwise. `digest` is of the form's config, empty when
    that is not valid."""
    context = state_shown(job) | {"digest": digest, "stale": job.config_digest != digest, "read": None}
    if job.state != JobState.DONE:
        return context
    read = Preview.model_validate(job.result)
    return context | {
        "read": read,
        "share": percent(read.over_limit / read.problems),
        "drawn": histogram_drawn(read.lengths.edges, read.lengths.counts),
    }


def probe_shown(version: VerifierVersion) -> dict[str, Any]:
    """The newest probe of a reward that was requested, for the run form; without a job when there was none."""
    jobs = LabJob.objects.filter(version=version, kind=JobKind.PROBE).exclude(state=JobState.CANCELLED)
    job = jobs.select_related("node").order_by("-pk").first()
    return {"job": None, "live": False} if job is None else state_shown(job)


SEVERITIES = ("error", "warning", "note")


def doctor_shown(model: BaseModel) -> dict[str, Any] | None:
    """The newest look at the model, worst findings first; None when nobody had it looked at."""
    jobs = LabJob.objects.filter(base_model=model, kind=JobKind.DOCTOR).exclude(state=JobState.CANCELLED)
    job = jobs.select_related("node").order_by("-pk").first()
    if job is None:
        return None
    context = state_shown(job) | {"diagnosis": None}
    if job.state != JobState.DONE:
        return context
    diagnosis = Diagnosis.model_validate(job.result)
    ordered = sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return context | {"diagnosis": diagnosis, "findings": ordered}


def state_shown(job: LabJob) -> dict[str, Any]:
    """Whether it is under way, how far, and why it waits."""
    return {"job": job, "live": job.state in OPEN, "progress": job.progress or {}, "why": why_waits(job)}
