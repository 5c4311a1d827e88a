"""Pages of records, and the card to take away. Fetch, authorise, render."""

import re
from typing import Any

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.utils.http import parse_etags
from django.views.decorators.http import require_safe

from cohort import artifacts
from cohort.access import project_for, run_for
from cohort.figures import natural
from cohort.governance import selectors
from cohort.governance.models import Record
from cohort.governance.selectors import RecordRow


@require_safe
def record_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    page = selectors.records(project, before=natural(request.GET.get("before")))
    return render(request, "governance/record_list.html", {"project": project, "page": page})


@require_safe
def record_detail(request: HttpRequest, slug: str, run_id: int, end: int | None = None) -> HttpResponse:
    """The record of the run's newest end that has one, or of its end number `end`."""
    run = run_for(request, slug, run_id)
    every = selectors.records_of(run)
    if end is None:
        row = every[0] if every else None
    elif (row := _of_end(every, end)) is None:
        raise Http404(f"no record was sealed at end {end} of this run")
    context: dict[str, Any] = {"project": run.project, "run": run, "row": row, "every": every}
    context["record"] = row.record if row is not None else None
    if row is not None:
        sealed, shown = selectors.opened(row.record)
        context |= {"sealed": sealed, "shown": shown}
    return render(request, "governance/record_detail.html", context)


@require_safe
def card_download(request: HttpRequest, slug: str, run_id: int, end: int | None = None) -> HttpResponseBase:
    """The card of the run's newest record, or of the one of its end number `end`."""
    run = run_for(request, slug, run_id)
    found = Record.objects.filter(run=run).order_by("-end")
    record = (found if end is None else found.filter(end=end)).first()
    if record is None:
        raise Http404("this run has no such record")
    etag = f'"{record.card_sha256}"'
    response: HttpResponseBase
    if {etag, "*"} & set(parse_etags(request.headers.get("If-None-Match", ""))):
        response = HttpResponseNotModified()
    else:
        which = f"-end-{record.end}" if record.end > 1 else ""
        name = f"card-run-{run.pk}{which}-{_plain(run.name)}.zip"
        response = FileResponse(
            artifacts.open_read(record.card_artifact),
            as_attachment=True,
            filename=name,
            content_type="application/zip",
        )
        response["Content-Length"] = str(record.card_size)
    response["ETag"] = etag
    patch_cache_control(response, private=True, no_cache=True)
    return response


def _of_end(rows: list[RecordRow], end: int) -> RecordRow | None:
    return next((row for row in rows if row.record.end == end), None)


def _plain(name: str) -> str:
    """A run's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "card"
