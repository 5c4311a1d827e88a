"""Whether this server can do its work: what it needs, for load balancers and operators, and a disk that is full."""

import sys
from contextlib import closing
from datetime import timedelta
from uuid import uuid4

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import OperationalError
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views import defaults
from django.views.decorators.http import require_safe
from kombu.exceptions import ConnectionError as BrokerConnectionError
from kombu.exceptions import KombuError

from cohort.api.problems import Problem
from cohort.background.outages import AWAY, RECONCILER
from cohort.base import artifacts
from cohort.base.celery_app import app
from cohort.base.schema_version import OtherSchema, connect, require_schema
from cohort.base.scratch import scratch_folder
from cohort.runs.models import ServiceBeat
from cohort.server.limits import API, WORKERS
from cohort.worker_api.records import no_room, refusal
from grpo_core.errors import DiskFullError

_SECONDS = 5
"""Each process of the web server looks at most so often."""


@login_not_required
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """503 with the reasons while something that this server needs does not work; /healthz says whether it answers."""
    reasons = cache.get_or_set("readyz", _reasons, _SECONDS)
    return JsonResponse({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)


def disk_short() -> bool:
    """Whether uploads are refused, as `artifacts.put` does."""
    return bool(cache.get_or_set("disk_short", artifacts.is_short, _SECONDS))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler of addresses that there are not."""
    if request.path_info.startswith(API):
        return Problem(404, "not_found", f"The API has no address {request.path_info[:200]!a}.").response
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler of whatever an address raises: 507 in words where a disk is full, else 500."""
    error = sys.exc_info()[1]
    full = no_room(error) if error is not None else None
    if request.path_info.startswith(API):
        fault = (500, "internal_error", "The server failed at this call; its log says why.")
        return Problem(*(fault if full is None else (507, full.code, full.message))).response
    if full is None:
        return defaults.server_error(request)
    if request.path_info.startswith(WORKERS):
        return refusal(507, full.code, full.message)
    return render(request, "507.html", {"text": full.message}, status=507)


def _reasons() -> list[str]:
    """What does not work, in words that anyone may read."""
    database = _database()
    return [reason for reason in (database, *_files(), _broker(), "" if database else _reconciler()) if reason]


def _database() -> str:
    with closing(connect(seconds=2)) as connection:
        try:
            require_schema(connection)
        except OtherSchema as error:
            return str(error)
        except OperationalError:
            return "the database does not answer"
    return ""


def _files() -> list[str]:
    """Of the artifacts and the scratch folder: what is written there is removed at once."""
    key, reasons = f"readyz/{uuid4().hex}", []
    if artifacts.is_short():
        reasons.append("the disk of the artifacts is nearly full: uploads are refused")
    try:
        artifacts.put(key, [b"ready"], to_the_last=True)
        artifacts.remove(key)
    except (OSError, DiskFullError):
        reasons.append("the artifacts cannot be written")
    try:
        with scratch_folder("readyz") as folder:
            (folder / "ready").write_bytes(b"ready")
    except (OSError, DiskFullError):
        reasons.append("the folder scratch/ of the home cannot be written")
    return reasons


def _broker() -> str:
    try:
        with app.connection_for_write(connect_timeout=2) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0)
    except (KombuError, BrokerConnectionError, OSError):
        return "the broker does not answer: runs are not offered to workers"
    return ""


def _reconciler() -> str:
    recent = ServiceBeat.objects.filter(name=RECONCILER, beat_at__gt=Now() - AWAY - timedelta(seconds=_SECONDS))
    if recent.exists():
        return ""
    return "the platform's worker of the queue `platform` has not looked for lost workers lately: is it running?"
