"""The one call of the worker API that comes all the time: a batch of records, as docs/worker-protocol.md describes it.

It goes straight to `ingest`, which authorises and locks in one statement. Under a web server it does not even pass
through Django's middleware, which is made for pages and would take as long as the batch: `RecordsFirst` comes before
it and keeps the thread's database connection. Any unusual call is left to the view, so both reply the same.
"""

import re
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from cohort.ingest.batch import UnknownToken, batch_ingest
from cohort.ingest.copy import BadRecord
from cohort.nodes import leases
from cohort.nodes.leases import StaleFence
from cohort.nodes.services import token_digest
from cohort.runs.models import Attempt
from grpo_core.errors import DiskFullError
from grpo_core.files.disk import is_full
from grpo_core.protocol.messages import IngestReply, Refusal

_PATH = re.compile(r"/api/worker/v1/attempts/([0-9]{1,18})/records")
NUMBER = re.compile(r"[0-9]{1,18}")
_SMALL_BYTES = 64 * 1024
UNKNOWN = Refusal(code="unknown_token", message="the bearer token is missing, unknown, revoked, or of another attempt")
_DATABASE_FULL = "53100"

Start = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[dict[str, Any], Any], Any]
"""WSGI, loosely: Django's own handler is one."""


@csrf_exempt
@require_POST
def records(request: HttpRequest, attempt_id: int) -> HttpResponse:
    given = request.META.get("HTTP_AUTHORIZATION", ""), request.META.get("HTTP_X_COHORT_FENCE", "")
    try:
        status, reply = _answer(attempt_id, *given, _is_large(request.META), lambda: request.body)
    except RequestDataTooBig:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return refusal(413, "too_large", f"a body has at most {limit} bytes")
    return _response(status, reply)


class RecordsFirst:
    """A WSGI application that answers plain calls of `records` itself and hands everything else to `rest`."""

    def __init__(self, rest: Application) -> None:
        self._rest = rest

    def __call__(self, environ: dict[str, Any], start: Start) -> Any:
        called = _PATH.fullmatch(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "POST" else None
        stated = environ.get("CONTENT_LENGTH") or ""
        if called is None or not NUMBER.fullmatch(stated) or int(stated) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            return self._rest(environ, start)
        given = environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_COHORT_FENCE", ""), _is_large(environ)
        body = cache(lambda: environ["wsgi.input"].read(int(stated)))  # what was read is needed again for a second try
        # The connection is kept from call to call, and the database may have been restarted in between. A batch may
        # come twice, so it is tried once more on a new connection, which shows whether the fault stays.
        for last in (False, True):
            try:
                status, reply = _answer(int(called[1]), *given, body)
                break
            except (OperationalError, InterfaceError) as error:
                connection.close()
                if full := no_room(error):
                    status, reply = 507, full
                    break
                if last:
                    raise
        text = reply.model_dump_json().encode()
        length = ("Content-Length", str(len(text)))
        start(
            f"{status} {HTTPStatus(status).phrase}",
            [("Content-Type", "application/json"), length, *_more_headers(status).items()],
        )
        return [text]


def _answer(
    attempt_id: int, authorization: str, fence: str, large: bool, body: Callable[[], bytes]
) -> tuple[int, IngestReply | Refusal]:
    """Status and body. A large body is read only for the attempt's own token; for a small one, the statement that
    takes the batch checks it, without a query before."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return 401, UNKNOWN
    if not NUMBER.fullmatch(fence):
        message = "the header X-Cohort-Fence must hold the attempt's fence"
        return 422, Refusal(code="bad_request", message=message)
    try:
        if large and leases.by_token(Attempt.objects.all(), attempt_id, token) is None:
            return 401, UNKNOWN
        acked = batch_ingest(attempt_id=attempt_id, digest=token_digest(token), fence=int(fence), body=body())
    except UnknownToken:
        return 401, UNKNOWN
    except StaleFence as error:
        return 409, Refusal(code="stale_fence", message=str(error))
    except BadRecord as error:
        return 422, Refusal(code="bad_record", message=str(error))
    return 200, IngestReply(acked_seq=acked)


def no_room(error: BaseException) -> Refusal | None:
    """What a caller is answered, with status 507, where the error says that a disk or the database's is full. None for
    any other error."""
    if isinstance(error, DatabaseError):
        full = getattr(error.__cause__, "sqlstate", "") == _DATABASE_FULL
    else:
        full = isinstance(error, DiskFullError) or is_full(error)
    text = str(error) if isinstance(error, DiskFullError) else "A disk of the server is full: nothing was stored."
    return Refusal(code=DiskFullError.code, message=text) if full else None


def _is_large(environ: dict[str, Any]) -> bool:
    stated = environ.get("CONTENT_LENGTH") or ""
    return not NUMBER.fullmatch(stated) or int(stated) > _SMALL_BYTES


def refusal(status: int, code: str, message: str) -> HttpResponse:
    """A wire.Refusal as a reply."""
    return _response(status, Refusal(code=code, message=message))


def _response(status: int, reply: IngestReply | Refusal) -> HttpResponse:
    return HttpResponse(
        reply.model_dump_json(), status=status, content_type="application/json", headers=_more_headers(status)
    )


def _more_headers(status: int) -> dict[str, str]:
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
