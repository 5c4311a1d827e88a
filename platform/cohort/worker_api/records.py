"""The one call of the worker API that comes all the time: a batch of records, as docs/worker-protocol.md tells it.

It goes straight to `ingest`, which authorises and locks in one statement. Under a web server it does not even pass
through Django's middleware, which is made for pages and would take as long as the batch: `RecordsFirst` stands before
it and keeps the thread's database connection. Whatever is odd about a call is left to the view, so both say the same.
"""

import re
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from cohort.runs.attempts import StaleFence
from cohort.runs.ingest import BadRecord, UnknownToken, batch_ingest
from cohort.runs.nodes import token_digest
from grpo_core.wire import IngestReply, Refusal

_PATH = re.compile(r"/api/worker/v1/attempts/([0-9]{1,18})/records")
_NUMBER = re.compile(r"[0-9]{1,18}")
_UNKNOWN = Refusal(code="unknown_token", message="the bearer token is missing, unknown, revoked, or of another attempt")
_WORDS = {200: "200 OK", 401: "401 Unauthorized", 409: "409 Conflict", 422: "422 Unprocessable Content"}

Start = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[dict[str, Any], Any], Any]
"""WSGI, loosely: Django's own handler is one."""


@csrf_exempt
@require_POST
def records(request: HttpRequest, attempt_id: int) -> HttpResponse:
    given = request.META.get("HTTP_AUTHORIZATION", ""), request.META.get("HTTP_X_COHORT_FENCE", "")
    try:
        status, said = _answer(attempt_id, *given, lambda: request.body)
    except RequestDataTooBig:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return refusal(413, "too_large", f"a body has at most {limit} bytes")
    return _response(status, said)


class RecordsFirst:
    """A WSGI application that answers plain calls of `records` itself and hands everything else to `rest`."""

    def __init__(self, rest: Application) -> None:
        self._rest = rest

    def __call__(self, environ: dict[str, Any], start: Start) -> Any:
        called = _PATH.fullmatch(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "POST" else None
        stated = environ.get("CONTENT_LENGTH") or ""
        if called is None or not _NUMBER.fullmatch(stated) or int(stated) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            return self._rest(environ, start)
        body = environ["wsgi.input"].read(int(stated))
        given = environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_COHORT_FENCE", "")
        try:
            status, said = _answer(int(called[1]), *given, lambda: body)
        except (OperationalError, InterfaceError):
            # The connection is kept from call to call, and the database may have been restarted in between. A batch
            # may come twice, so it is tried once more on a new connection, which tells whether the fault stays.
            connection.close()
            try:
                status, said = _answer(int(called[1]), *given, lambda: body)
            except (OperationalError, InterfaceError):
                connection.close()
                raise
        text = said.model_dump_json().encode()
        length = ("Content-Length", str(len(text)))
        start(_WORDS[status], [("Content-Type", "application/json"), length, *_more_headers(status).items()])
        return [text]


def _answer(
    attempt_id: int, authorization: str, fence: str, body: Callable[[], bytes]
) -> tuple[int, IngestReply | Refusal]:
    """Status and body. `body` is read only when the call has a token to be looked at."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return 401, _UNKNOWN
    if not _NUMBER.fullmatch(fence):
        message = "the header X-Cohort-Fence must hold the attempt's fence"
        return 422, Refusal(code="bad_request", message=message)
    try:
        acked = batch_ingest(attempt_id=attempt_id, digest=token_digest(token), fence=int(fence), body=body())
    except UnknownToken:
        return 401, _UNKNOWN
    except StaleFence as error:
        return 409, Refusal(code="stale_fence", message=str(error))
    except BadRecord as error:
        return 422, Refusal(code="bad_record", message=str(error))
    return 200, IngestReply(acked_seq=acked)


def refusal(status: int, code: str, message: str) -> HttpResponse:
    """A wire.Refusal as an answer."""
    return _response(status, Refusal(code=code, message=message))


def unknown_token() -> HttpResponse:
    return _response(401, _UNKNOWN)


def _response(status: int, said: IngestReply | Refusal) -> HttpResponse:
    return HttpResponse(
        said.model_dump_json(), status=status, content_type="application/json", headers=_more_headers(status)
    )


def _more_headers(status: int) -> dict[str, str]:
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
