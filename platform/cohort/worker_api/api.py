"""The worker API, as docs/worker-protocol.md tells it: authorise, call one service, answer.

Every 4xx body is a wire.Refusal. Nothing here trusts what a worker says beyond its own attempt.
"""

from collections.abc import Iterator
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import NinjaAPI, Status
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBearer

from cohort import artifacts
from cohort.runs.attempts import (
    NotWaiting,
    RecordsMissing,
    StaleFence,
    attempt_beat,
    attempt_claim,
    attempt_finish,
    attempt_inputs,
)
from cohort.runs.ingest import BadRecord, records_ingest
from cohort.runs.models import Attempt, Node, Run
from cohort.runs.nodes import node_present, token_digest
from grpo_core.wire import Beat, BeatReply, ClaimReply, ClaimRequest, Finish, IngestReply, NodeInfo, Refusal

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
        return Node.objects.filter(token_digest=token_digest(token), revoked_at=None).first()


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
    claimed = attempt_claim(run_id=body.run_id, node=_auth(request), info=body.node)
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
            heartbeat_seconds=settings.COHORT_HEARTBEAT_SECONDS,
            lease_seconds=settings.COHORT_LEASE_SECONDS,
        ),
    )


@api.post("/node", auth=NodeToken(), response={204: None})
def node(request: HttpRequest, body: NodeInfo) -> Any:
    node_present(node=_auth(request), info=body)
    return Status(204, None)


@api.get("/attempts/{int:attempt_id}/files/{sha256}", auth=AttemptToken())
def files(request: HttpRequest, attempt_id: int, sha256: str) -> Any:
    inputs = {file.sha256: dataset for dataset, file in attempt_inputs(run=_auth(request).run)}
    if sha256 not in inputs:
        return _refusal(404, "unknown_file", f"{sha256} is not one of this attempt's files")
    dataset = inputs[sha256]
    try:
        handle = artifacts.open_read(dataset.artifact)
    except (FileNotFoundError, PermissionError) as error:
        message = (
            f"the file of the dataset {dataset.name} cannot be read from the platform's artifacts: {error}. "
            "Put it back from a backup, or upload the dataset again."
        )
        return _refusal(404, "file_missing", message)
    response = StreamingHttpResponse(_chunks(handle), content_type="application/octet-stream")
    response["Content-Length"] = str(dataset.size)
    return response


@api.post("/attempts/{int:attempt_id}/heartbeat", auth=AttemptToken(), response=BeatReply)
def heartbeat(request: HttpRequest, attempt_id: int, body: Beat) -> Any:
    desired = attempt_beat(attempt=_auth(request), beat=body)
    return BeatReply(desired=desired.value, lease_seconds=settings.COHORT_LEASE_SECONDS)


@api.post("/attempts/{int:attempt_id}/records", auth=AttemptToken(), response=IngestReply)
def records(request: HttpRequest, attempt_id: int) -> Any:
    fence = request.headers.get("X-Cohort-Fence", "")
    if not fence.isdecimal():
        return _refusal(422, "bad_request", "the header X-Cohort-Fence must hold the attempt's fence")
    return IngestReply(acked_seq=records_ingest(attempt=_auth(request), fence=int(fence), body=request.body))


@api.post("/attempts/{int:attempt_id}/finish", auth=AttemptToken(), response={204: None})
def finish(request: HttpRequest, attempt_id: int, body: Finish) -> Any:
    attempt_finish(attempt=_auth(request), finish=body)
    return Status(204, None)


def _auth(request: HttpRequest) -> Any:
    """What the token stands for: a Node or an Attempt, as the call's `auth` says."""
    return request.auth  # type: ignore[attr-defined]


def _chunks(handle: IO[bytes]) -> Iterator[bytes]:
    with handle:
        while chunk := handle.read(1 << 20):
            yield chunk


def _refusal(status: int, code: str, message: str) -> HttpResponse:
    return HttpResponse(
        Refusal(code=code, message=message).model_dump_json(), status=status, content_type="application/json"
    )


@api.exception_handler(AuthenticationError)
def _no_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = _refusal(401, "unknown_token", "the bearer token is missing, unknown, revoked, or of another attempt")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(HttpError)
def _unreadable(request: HttpRequest, error: HttpError) -> HttpResponse:
    return _refusal(error.status_code, "bad_request", error.message)


@api.exception_handler(ValidationError)
def _bad_request(request: HttpRequest, error: ValidationError) -> HttpResponse:
    faults = "; ".join(f"{'.'.join(str(piece) for piece in fault['loc'])}: {fault['msg']}" for fault in error.errors)
    return _refusal(422, "bad_request", faults)


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return _refusal(413, "too_large", f"a body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes")


@api.exception_handler(Run.DoesNotExist)
def _unknown_run(request: HttpRequest, error: Run.DoesNotExist) -> HttpResponse:
    return _refusal(404, "unknown_run", "there is no such run")


@api.exception_handler(NotWaiting)
def _not_waiting(request: HttpRequest, error: NotWaiting) -> HttpResponse:
    return _refusal(409, "not_waiting", str(error))


@api.exception_handler(StaleFence)
def _stale_fence(request: HttpRequest, error: StaleFence) -> HttpResponse:
    return _refusal(409, "stale_fence", str(error))


@api.exception_handler(RecordsMissing)
def _records_missing(request: HttpRequest, error: RecordsMissing) -> HttpResponse:
    return _refusal(409, "records_missing", str(error))


@api.exception_handler(BadRecord)
def _bad_record(request: HttpRequest, error: BadRecord) -> HttpResponse:
    return _refusal(422, "bad_record", str(error))
