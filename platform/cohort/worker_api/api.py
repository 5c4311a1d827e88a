"""The worker API, as docs/worker-protocol.md describes it: authorise, call one service, reply.

Every 4xx body is a wire.Refusal. Nothing here trusts what a worker reports beyond its own attempt or job.
"""

from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Model, QuerySet
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBearer

from cohort.base import artifacts
from cohort.base.storable import Refused
from cohort.catalog.models import PromptDataset
from cohort.ingest import rescored
from cohort.lab import jobs
from cohort.lab.models import JobKind, LabJob
from cohort.lab.turns import BadAnswer
from cohort.nodes import leases
from cohort.nodes.leases import NotWaiting, OtherVersion, StaleFence
from cohort.nodes.models import Node
from cohort.nodes.services import node_by_token, node_present
from cohort.review.sampled_datasets import dataset_part
from cohort.review.token_files import token_part
from cohort.runs import attempts
from cohort.runs.base_models import ModelFile
from cohort.runs.checkpoints import needless, offers, removed
from cohort.runs.logs import log_append
from cohort.runs.models import Attempt, Run
from cohort.runs.sampled_inputs import SampledAbout
from cohort.runs.stored_files import BadFile, FileMissing, UnknownFile, WrongOffset, stored_file
from cohort.runs.uploads import checkpoint_part, requested_checkpoints, requested_part, requested_unavailable
from cohort.worker_api.records import NUMBER, UNKNOWN, refusal
from grpo_core.protocol import messages as wire

_ATTEMPT, _JOB = "/attempts/{int:attempt_id}", "/jobs/{int:job_id}"

api = NinjaAPI(
    title="Cohort worker API",
    version="1",
    urls_namespace="worker_api",
    docs_url="/docs" if settings.DEBUG else None,
    openapi_url="/openapi.json" if settings.DEBUG else None,
)


class NodeToken(HttpBearer):
    """The token of a machine; it may claim."""

    def authenticate(self, request: HttpRequest, token: str) -> Node | None:
        return node_by_token(token)


class BadPart(Refused, code="bad_request"):
    """A part of a file or log without the headers that say whose it is and where it belongs."""


class LeaseToken(HttpBearer):
    """The token of one attempt or job; it opens nothing but addresses below its id."""

    def __init__(self, rows: QuerySet[Any], argument: str) -> None:
        super().__init__()
        self._rows, self._argument = rows, argument

    def authenticate(self, request: HttpRequest, token: str) -> Model | None:
        match = request.resolver_match
        return None if match is None else leases.by_token(self._rows.all(), match.kwargs[self._argument], token)


_node_auth = NodeToken()
_attempt_auth = LeaseToken(Attempt.objects.select_related("run", "node"), "attempt_id")
_job_auth = LeaseToken(LabJob.objects.select_related("dataset", "conversation"), "job_id")


def _caller(request: HttpRequest) -> Any:
    """Whose token it is: a Node, an Attempt or a LabJob, as the call's `auth` says."""
    return request.auth  # type: ignore[attr-defined]


@api.get("/pulse", response={204: None})
def pulse(request: HttpRequest) -> Any:
    """Whether calls of workers get through, as far as the database; the web server calls it for its sign of life."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError) as error:
        return refusal(503, "database_away", f"the database does not answer: {error}")
    return None


# ---------------------------------------------------------------------- nodes


@api.post("/node", auth=_node_auth, response=wire.NodeReply)
def node(request: HttpRequest, body: wire.NodeInfo) -> Any:
    node_present(node=_caller(request), info=body)
    return wire.NodeReply(requested=requested_checkpoints(node=_caller(request)))


@api.post("/node/checkpoints/{int:checkpoint_id}/uploads/{sha256}", auth=_node_auth, response=wire.UploadReply)
def requested_uploads(request: HttpRequest, checkpoint_id: int, sha256: str) -> Any:
    """A part of a requested checkpoint's file, as it is; an empty body asks how much is held."""
    return requested_part(
        node=_caller(request),
        checkpoint_id=checkpoint_id,
        sha256=sha256,
        offset=_part_offset(request),
        body=request.body,
    )


@api.post("/node/checkpoints/{int:checkpoint_id}/unavailable", auth=_node_auth, response={204: None})
def unavailable(request: HttpRequest, checkpoint_id: int, body: wire.Unavailable) -> None:
    requested_unavailable(node=_caller(request), checkpoint_id=checkpoint_id, reason=body.reason, removed=body.removed)


@api.post("/node/lost", auth=_node_auth, response={204: None})
def lost(request: HttpRequest, body: wire.LostAttempts) -> None:
    """Attempts that the node's worker found dead when it started; those of other nodes in the list are passed over."""
    attempts.attempts_released(node=_caller(request), lost=body)


# ---------------------------------------------------------------------- attempts


@api.post("/claim", auth=_node_auth, response={201: wire.ClaimReply})
def claim(request: HttpRequest, body: wire.ClaimRequest) -> Any:
    node = _caller(request)
    attempt, token = attempts.attempt_claim(run_id=body.run_id, node=node, info=body.node, claim_id=body.claim_id)
    return wire.ClaimReply(
        attempt_id=attempt.pk,
        fence=attempt.fence,
        token=token,
        run_id=attempt.run_id,
        run_name=attempt.run.name,
        config=attempt.run.config,
        files=[file for _, file in attempts.attempt_inputs(run=attempt.run)],
        resume=offers(attempt.run),
        heartbeat_seconds=settings.COHORT_HEARTBEAT_SECONDS,
        lease_seconds=settings.COHORT_LEASE_SECONDS,
    )


@api.get(_ATTEMPT + "/files/{sha256}", auth=_attempt_auth)
def files(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A dataset or suite that the run reads, what a sampled one came from, a file of its base model, or one of its own
    checkpoints that the platform holds."""
    attempt: Attempt = _caller(request)
    leases.require_current(attempt, attempt.fence)
    inputs = {file.sha256: row for row, file in attempts.attempt_inputs(run=attempt.run)}
    row = inputs.get(sha256)
    if isinstance(row, ModelFile):
        return _streamed(row.run_id, sha256)
    if isinstance(row, SampledAbout):
        return HttpResponse(row.content, content_type="application/json")
    if row is not None:
        kind = "dataset" if isinstance(row, PromptDataset) else "suite"
        return _artifact(row.artifact, f"the file of the {kind} {row.name}", f"the {kind}")
    return _streamed(attempt.run_id, sha256)


@api.post(_ATTEMPT + "/uploads/{sha256}", auth=_attempt_auth, response=wire.UploadReply)
def uploads(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A part of a checkpoint's file, as it is; an empty body asks how much is held."""
    fence, offset = _part_headers(request)
    return checkpoint_part(attempt=_caller(request), fence=fence, sha256=sha256, offset=offset, body=request.body)


@api.post(_ATTEMPT + "/tokens/{sha256}", auth=_attempt_auth, response=wire.UploadReply)
def tokens(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A part of a step's token arrays, as it is; an empty body asks how much is held."""
    fence, offset = _part_headers(request)
    return token_part(attempt=_caller(request), fence=fence, sha256=sha256, offset=offset, body=request.body)


@api.post(_ATTEMPT + "/dataset/{sha256}", auth=_attempt_auth, response=wire.UploadReply)
def dataset(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A part of the dataset that the run sampled, as it is; an empty body asks how much is held."""
    fence, offset = _part_headers(request)
    return dataset_part(attempt=_caller(request), fence=fence, sha256=sha256, offset=offset, body=request.body)


@api.post(_ATTEMPT + "/log", auth=_attempt_auth, response=wire.LogReply)
def log(request: HttpRequest, attempt_id: int) -> Any:
    """A part of what the trainer printed, as it is; an empty body asks how much is held."""
    fence, offset = _part_headers(request)
    return log_append(attempt=_caller(request), fence=fence, offset=offset, body=request.body)


@api.post(_ATTEMPT + "/heartbeat", auth=_attempt_auth, response=wire.BeatReply)
def heartbeat(request: HttpRequest, attempt_id: int, body: wire.Beat) -> Any:
    attempt: Attempt = _caller(request)
    desired, pinned = attempts.attempt_beat(attempt=attempt, beat=body)
    removed(attempt, body.removed)
    lease = settings.COHORT_LEASE_SECONDS
    return wire.BeatReply(desired=desired, lease_seconds=lease, pinned=pinned, needless=needless(attempt))


@api.post(_ATTEMPT + "/finish", auth=_attempt_auth, response={204: None})
def finish(request: HttpRequest, attempt_id: int, body: wire.Finish) -> None:
    attempts.attempt_finish(attempt=_caller(request), finish=body)


# ---------------------------------------------------------------------- jobs of the reward lab


@api.post("/jobs/claim", auth=_node_auth, response={201: wire.JobGiven})
def job_claimed(request: HttpRequest, body: wire.JobClaim) -> Any:
    job, token = jobs.job_claim(job_id=body.job_id, node=_caller(request), info=body.node, claim_id=body.claim_id)
    return wire.JobGiven(
        job_id=job.pk,
        fence=job.fence,
        token=token,
        job=jobs.job_config(job),
        files=[wire.InputFile(path=file["path"], sha256=file["sha256"], size=file["size"]) for file in job.inputs],
        heartbeat_seconds=jobs.heartbeat_seconds(job),
        lease_seconds=settings.COHORT_LEASE_SECONDS,
        deadline_seconds=jobs.deadline(job).total_seconds(),
    )


@api.get(_JOB + "/files/{sha256}", auth=_job_auth)
def job_file(request: HttpRequest, job_id: int, sha256: str) -> Any:
    """A file that the job reads: the dataset whose problems it uses, or those that the config of an estimate names."""
    job: LabJob = _caller(request)
    leases.require_current(job, job.fence)
    for file in job.inputs:
        if file["sha256"] == sha256 and "run" in file:
            return _streamed(file["run"], sha256)
        if file["sha256"] == sha256:
            return _artifact(file["artifact"], f"the file {sha256} of a dataset or suite", "it")
    raise UnknownFile(f"{sha256} is not one of this job's files")


@api.post(_JOB + "/heartbeat", auth=_job_auth, response=wire.JobBeatReply)
def job_heartbeat(request: HttpRequest, job_id: int, body: wire.JobBeat) -> Any:
    return jobs.job_beat(job=_caller(request), beat=body)


@api.post(_JOB + "/finish", auth=_job_auth, response={204: None})
def job_finished(request: HttpRequest, job_id: int, body: wire.JobFinish) -> None:
    job: LabJob = _caller(request)
    if job.kind == JobKind.RESCORE:
        rescored.rescore_finish(job=job, finish=body)
    else:
        jobs.job_finish(job=job, finish=body)


@api.post(_JOB + "/samples", auth=_job_auth)
def job_samples(request: HttpRequest, job_id: int, body: wire.PageRequest) -> HttpResponse:
    """The next stored groups of the run that the job scores again: a GroupPage, as zstd."""
    return HttpResponse(rescored.page_of(job=_caller(request), request=body), content_type="application/zstd")


@api.post(_JOB + "/scores", auth=_job_auth, response=wire.ScoresReply)
def job_scores(request: HttpRequest, job_id: int, body: wire.ScoresSent) -> Any:
    return wire.ScoresReply(done=rescored.scores_store(job=_caller(request), sent=body))


# ---------------------------------------------------------------------- replies


def _part_headers(request: HttpRequest) -> tuple[int, int | None]:
    """The attempt's fence, and at which byte the part begins; None of an empty one. Raises BadPart."""
    fence = request.headers.get("X-Cohort-Fence", "")
    if not NUMBER.fullmatch(fence):
        raise BadPart("the header X-Cohort-Fence must hold the attempt's fence")
    return int(fence), _part_offset(request)


def _part_offset(request: HttpRequest) -> int | None:
    """At which byte the part begins; None of an empty one. Raises BadPart."""
    offset = request.headers.get("X-Cohort-Offset", "")
    if request.body and not NUMBER.fullmatch(offset):
        raise BadPart("the header X-Cohort-Offset must say at which byte the part begins")
    return int(offset) if request.body else None


def _artifact(key: str, what: str, again: str) -> FileResponse:
    try:
        handle = artifacts.open_read(key)
    except (FileNotFoundError, PermissionError) as error:
        raise FileMissing(
            f"{what} cannot be read from the platform's artifacts: {error}. "
            f"Put it back from a backup, or upload {again} again."
        ) from None

    return FileResponse(handle, content_type="application/octet-stream")


def _streamed(run_id: int, sha256: str) -> StreamingHttpResponse:
    """A file of a checkpoint of this run. Raises UnknownFile, FileMissing."""
    held = stored_file(run_id=run_id, sha256=sha256)
    if held is None:
        raise UnknownFile(f"{sha256} is not one of these files")
    size, chunks = held
    headers = {"Content-Length": str(size)}
    return StreamingHttpResponse(chunks, content_type="application/octet-stream", headers=headers)


def _refused(request: HttpRequest, error: Refused, status: int) -> HttpResponse:
    return refusal(status, type(error).code, str(error))


for _status, _errors in {
    404: (UnknownFile, FileMissing),
    409: (NotWaiting, OtherVersion, StaleFence, attempts.RecordsMissing, WrongOffset),
    422: (BadFile, BadPart, jobs.BadResult, BadAnswer, rescored.BadScores),
}.items():
    for _error in _errors:
        api.add_exception_handler(_error, partial(_refused, status=_status))


@api.exception_handler(AuthenticationError)
def _no_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return refusal(401, UNKNOWN.code, UNKNOWN.message)


@api.exception_handler(HttpError)
def _unreadable(request: HttpRequest, error: HttpError) -> HttpResponse:
    return refusal(error.status_code, "bad_request", error.message)


@api.exception_handler(ValidationError)
def _bad_request(request: HttpRequest, error: ValidationError) -> HttpResponse:
    faults = "; ".join(f"{'.'.join(str(piece) for piece in fault['loc'])}: {fault['msg']}" for fault in error.errors)
    return refusal(422, "bad_request", faults)


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return refusal(413, "too_large", f"a body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes")


@api.exception_handler(Run.DoesNotExist)
def _unknown_run(request: HttpRequest, error: Run.DoesNotExist) -> HttpResponse:
    return refusal(404, "unknown_run", "there is no such run")
