"""The worker API's calls for jobs of the reward lab, as docs/worker-protocol.md tells them: authorise, call one
service, answer. A job's token opens nothing but addresses below jobs/{its id}/.
"""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Router, Status
from ninja.security import HttpBearer

from cohort.base import artifacts
from cohort.lab.jobs import DEADLINE, file_artifact, job_beat, job_claim, job_finish
from cohort.lab.models import JobState, LabJob
from cohort.nodes.services import token_digest
from cohort.runs.attempts import StaleFence
from cohort.worker_api.records import refusal
from cohort.worker_api.shared import NodeToken, asking, chunks_of, streamed
from grpo_core.protocol.messages import JobBeat, JobBeatReply, JobClaim, JobFinish, JobGiven

router = Router()


class JobToken(HttpBearer):
    """The token of one job, at the fence at which a worker took it."""

    def authenticate(self, request: HttpRequest, token: str) -> LabJob | None:
        match = request.resolver_match
        return (
            LabJob.objects.filter(pk=match.kwargs["job_id"], token_digest=token_digest(token), node__revoked_at=None)
            .select_related("dataset")
            .first()
            if match is not None
            else None
        )


@router.post("/claim", auth=NodeToken(), response={201: JobGiven})
def claim(request: HttpRequest, body: JobClaim) -> Any:
    given = job_claim(job_id=body.job_id, node=asking(request), info=body.node, claim_id=body.claim_id)
    return Status(
        201,
        JobGiven(
            job_id=given.job.pk,
            fence=given.job.fence,
            token=given.token,
            job=given.config,
            files=given.files,
            heartbeat_seconds=settings.COHORT_HEARTBEAT_SECONDS,
            lease_seconds=settings.COHORT_LEASE_SECONDS,
            deadline_seconds=DEADLINE.total_seconds(),
        ),
    )


@router.get("/{int:job_id}/files/{sha256}", auth=JobToken())
def files(request: HttpRequest, job_id: int, sha256: str) -> Any:
    """A file that the job reads: the dataset whose problems it uses, or those that the config of an estimate names."""
    job: LabJob = asking(request)
    if job.state != JobState.RUNNING:
        raise StaleFence(f"job {job.pk} is {job.get_state_display()} and reads no file")
    if (kept := file_artifact(job, sha256)) is None:
        return refusal(404, "unknown_file", f"{sha256} is not one of this job's files")
    try:
        handle = artifacts.open_read(kept[0])
    except (FileNotFoundError, PermissionError) as error:
        message = (
            f"the file {sha256} of a dataset or suite cannot be read from the platform's artifacts: {error}. "
            "Put it back from a backup, or upload it again."
        )
        return refusal(404, "file_missing", message)
    return streamed(kept[1], chunks_of(handle))


@router.post("/{int:job_id}/heartbeat", auth=JobToken(), response=JobBeatReply)
def heartbeat(request: HttpRequest, job_id: int, body: JobBeat) -> Any:
    called_off = job_beat(job=asking(request), beat=body)
    return JobBeatReply(desired="cancel" if called_off else "run", lease_seconds=settings.COHORT_LEASE_SECONDS)


@router.post("/{int:job_id}/finish", auth=JobToken(), response={204: None})
def finish(request: HttpRequest, job_id: int, body: JobFinish) -> Any:
    job_finish(job=asking(request), finish=body)
    return Status(204, None)
