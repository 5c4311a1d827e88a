"""The signed status of a record: for anyone who has its seal, as `cohort verify` asks for it, and for the project's
members as a page, on paper and as JSON. Fetch, authorise, render."""

import json
import re
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role, reaches
from cohort.base.environment import environment
from cohort.evidence.status import FILE, PAGE, PAPER
from cohort.records.models import Audience, Record
from cohort.records.status.services import StatusPending, current_status, handed_out, is_current, newest, says_all
from cohort.runs.dispatch import request_status
from cohort.web.access import file_response, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.cards.views import status_pending

_SEAL = re.compile(r"[0-9a-f]{64}")


@login_not_required
@require_safe
def status_of_seal(request: HttpRequest, seal: str) -> HttpResponse:
    """status.json as the public card has it. Whoever has the seal has a card, or was given it."""
    record = Record.objects.filter(seal=seal).defer("document").first() if _SEAL.fullmatch(seal) else None
    response: HttpResponse
    if record is None:
        response = JsonResponse({"error": "no record of this platform has this seal"}, status=404)
    else:
        try:
            status = current_status(record, Audience.PUBLIC)
        except StatusPending as why:
            response = JsonResponse({"error": str(why)}, status=503, headers={"Retry-After": "3"})
        else:
            response = HttpResponse(handed_out(status), content_type="application/json")
    response["Cache-Control"] = "no-store"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response


def shown(record: Record, role: str) -> dict[str, Any]:
    """For the record's page: the newest status that this person may see, and whether it is still what happened."""
    row = newest(record, _audience(role))
    stale = row is None or not is_current(row)
    if stale:
        request_status(record_id=record.pk)
    return {
        "row": row,
        "stale": stale,
        "ended": stale and row is not None and says_all(row),
        "words": json.loads(row.bundle)["status"]["state"]["words"] if row else "",
        "files": ((PAGE, "Page"), (PAPER, "PDF"), (FILE, "JSON")),
        "address": f"{environment().public_url.rstrip('/')}{reverse('status_of_seal', args=[record.seal])}",
    }


def _audience(role: str) -> str:
    return Audience.INTERNAL if role and reaches(role, Role.REVIEWER) else Audience.PUBLIC


@require_safe
def record_status(request: HttpRequest, slug: str, run_id: int, end: int, version: int, name: str) -> HttpResponse:
    """A file of the newest status, as the fullest card that this person may take has it."""
    run = run_for(request, slug, run_id)
    record = Record.objects.filter(run=run, end=end, version=version).defer("document").first()
    if record is None:
        raise Http404("this run has no such record")
    try:
        status = current_status(record, _audience(role_in(run.project, person(request))))
    except StatusPending as why:
        return status_pending(why)
    if name == PAGE:
        response = HttpResponse(status.page)
        response["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return response
    files = {PAPER: (bytes(status.paper), "application/pdf"), FILE: (handed_out(status).encode(), "application/json")}
    if name not in files:
        raise Http404(f"a status has no {name}")
    return file_response(*files[name], name)
