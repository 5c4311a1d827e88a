"""The worker API, as docs/worker-protocol.md tells it: authorise, call one service, answer.

Every 4xx body is a wire.Refusal. Nothing here trusts what a worker says beyond its own attempt.
"""

import re
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, Status
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBearer

from cohort.base import artifacts
from cohort.catalog.models import PromptDataset
from cohort.lab.jobs import BadResult
from cohort.nodes.services import node_present, token_digest
from cohort.runs.attempts import (
    NotWaiting,
    OtherVersion,
    RecordsMissing,
    StaleFence,
    attempt_beat,
    attempt_claim,
    attempt_finish,
    attempt_inputs,
    attempts_released,
)
from cohort.runs.checkpoints import needless, removed
from cohort.runs.models import Attempt, AttemptState, Run
from cohort.runs.uploads import BadFile, FileMissing, UnknownFile, WrongOffset, checkpoint_file, checkpoint_part
from cohort.worker_api.jobs import router as jobs
from cohort.worker_api.records import refusal, unknown_token
from cohort.worker_api.shared import NodeToken, asking, chunks_of, streamed
from grpo_core.protocol.messages import (
    Beat,
    BeatReply,
    ClaimReply,
    ClaimRequest,
    Finish,
    LostAttempts,
    NodeInfo,
    UploadReply,
)

_COUNT = re.compile(r"[0-9]{1,18}")

api = NinjaAPI(
    title="Cohort worker API",
    version="1",
    urls_namespace="worker_api",
    docs_url="/docs" if settings.DEBUG else None,
    openapi_url="/openapi.json" if settings.DEBUG else None,
)


class AttemptToken(HttpBearer):
    """The token of one attempt; it opens nothing but addresses below attempts/{its id}/."""

    def authenticate(self, request: HttpRequest, token: str) -> Attempt | None:
        match = request.resolver_match
        return (
            Attempt.objects.filter(
                pk=match.kwargs["attempt_id"], token_digest=token_digest(token), node__revoked_at=None
            )
            .select_related("run", "node")
            .first()
            if match is not None
            else None
        )


@api.post("/claim", auth=NodeToken(), response={201: ClaimReply})
def claim(request: HttpRequest, body: ClaimRequest) -> Any:
    claimed = attempt_claim(run_id=body.run_id, node=asking(request), info=body.node, claim_id=body.claim_id)
    attempt = claimed.attempt
    return Status(
        201,
        ClaimReply(
            attempt_id=attempt.pk,
            fence=attempt.fence,
            token=claimed.token,
            run_id=attempt.run_id,
            run_name=attempt.run.name,
            config=attempt.run.config,
            files=claimed.files,
            resume=claimed.resume,
            heartbeat_seconds=settings.COHORT_HEARTBEAT_SECONDS,
            lease_seconds=settings.COHORT_LEASE_SECONDS,
        ),
    )


@api.post("/node", auth=NodeToken(), response={204: None})
def node(request: HttpRequest, body: NodeInfo) -> Any:
    node_present(node=asking(request), info=body)
    return Status(204, None)


@api.post("/node/lost", auth=NodeToken(), response={204: None})
def lost(request: HttpRequest, body: LostAttempts) -> Any:
    """Attempts that the node's worker found dead when it started; those of other nodes in the list are passed over."""
    attempts_released(node=asking(request), lost=body)
    return Status(204, None)


@api.get("/attempts/{int:attempt_id}/files/{sha256}", auth=AttemptToken())
def files(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A dataset or suite that the run reads, or a file of its checkpoints that the platform holds."""
    attempt = asking(request)
    if attempt.state != AttemptState.RUNNING:
        raise StaleFence(f"attempt {attempt.fence} of run {attempt.run_id} has ended: {attempt.state}")
    inputs = {file.sha256: row for row, file in attempt_inputs(run=attempt.run)}
    if sha256 not in inputs:
        held = checkpoint_file(attempt=attempt, sha256=sha256)
        if held is None:
            return refusal(404, "unknown_file", f"{sha256} is not one of this attempt's files")
        return streamed(*held)
    row = inputs[sha256]
    kind = "dataset" if isinstance(row, PromptDataset) else "suite"
    try:
        handle = artifacts.open_read(row.artifact)
    except (FileNotFoundError, PermissionError) as error:
        message = (
            f"the file of the {kind} {row.name} cannot be read from the platform's artifacts: {error}. "
            f"Put it back from a backup, or upload the {kind} again."
        )
        return refusal(404, "file_missing", message)
    return streamed(row.size, chunks_of(handle))


@api.post("/attempts/{int:attempt_id}/uploads/{sha256}", auth=AttemptToken(), response=UploadReply)
def uploads(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    """A part of a checkpoint's file, as it is; an empty body asks how much is held."""
    fence, offset = request.headers.get("X-Cohort-Fence", ""), request.headers.get("X-Cohort-Offset", "")
    if not _COUNT.fullmatch(fence):
        return refusal(422, "bad_request", "the header X-Cohort-Fence must hold the attempt's fence")
    if request.body and not _COUNT.fullmatch(offset):
        return refusal(422, "bad_request", "the header X-Cohort-Offset must say at which byte the part begins")
    return checkpoint_part(
        attempt=asking(request),
        fence=int(fence),
        sha256=sha256,
        offset=int(offset) if request.body else None,
        body=request.body,
    )


@api.post("/attempts/{int:attempt_id}/heartbeat", auth=AttemptToken(), response=BeatReply)
def heartbeat(request: HttpRequest, attempt_id: int, body: Beat) -> Any:
    attempt: Attempt = asking(request)
    desired, pinned = attempt_beat(attempt=attempt, beat=body)
    removed(attempt, body.removed)
    lease = settings.COHORT_LEASE_SECONDS
    return BeatReply(desired=desired, lease_seconds=lease, pinned=pinned, needless=needless(attempt))


@api.post("/attempts/{int:attempt_id}/finish", auth=AttemptToken(), response={204: None})
def finish(request: HttpRequest, attempt_id: int, body: Finish) -> Any:
    attempt_finish(attempt=asking(request), finish=body)
    return Status(204, None)


api.add_router("/jobs", jobs)


@api.exception_handler(AuthenticationError)
def _no_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return unknown_token()


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


@api.exception_handler(NotWaiting)
def _not_waiting(request: HttpRequest, error: NotWaiting) -> HttpResponse:
    return refusal(409, "not_waiting", str(error))


@api.exception_handler(OtherVersion)
def _other_version(request: HttpRequest, error: OtherVersion) -> HttpResponse:
    return refusal(409, "other_version", str(error))


@api.exception_handler(StaleFence)
def _stale_fence(request: HttpRequest, error: StaleFence) -> HttpResponse:
    return refusal(409, "stale_fence", str(error))


@api.exception_handler(RecordsMissing)
def _records_missing(request: HttpRequest, error: RecordsMissing) -> HttpResponse:
    return refusal(409, "records_missing", str(error))


@api.exception_handler(UnknownFile)
def _unknown_file(request: HttpRequest, error: UnknownFile) -> HttpResponse:
    return refusal(404, "unknown_file", str(error))


@api.exception_handler(FileMissing)
def _file_missing(request: HttpRequest, error: FileMissing) -> HttpResponse:
    return refusal(404, "file_missing", str(error))


@api.exception_handler(WrongOffset)
def _wrong_offset(request: HttpRequest, error: WrongOffset) -> HttpResponse:
    return refusal(409, "wrong_offset", str(error))


@api.exception_handler(BadFile)
def _bad_file(request: HttpRequest, error: BadFile) -> HttpResponse:
    return refusal(422, "bad_file", str(error))


@api.exception_handler(BadResult)
def _bad_result(request: HttpRequest, error: BadResult) -> HttpResponse:
    return refusal(422, "bad_result", str(error))
