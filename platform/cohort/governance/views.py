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


@require_safe
def record_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    page = selectors.records(project, before=natural(request.GET.get("before")))
    return render(request, "governance/record_list.html", {"project": project, "page": page})


@require_safe
def record_detail(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id)
    record = Record.objects.filter(run=run).first()
    context: dict[str, Any] = {"project": run.project, "run": run, "record": record}
    if record is not None:
        sealed, shown = selectors.opened(record)
        context |= {"sealed": sealed, "shown": shown}
    return render(request, "governance/record_detail.html", context)


@require_safe
def card_download(request: HttpRequest, slug: str, run_id: int) -> HttpResponseBase:
    run = run_for(request, slug, run_id)
    record = Record.objects.filter(run=run).first()
    if record is None:
        raise Http404("this run has no record yet")
    etag = f'"{record.card_sha256}"'
    response: HttpResponseBase
    if {etag, "*"} & set(parse_etags(request.headers.get("If-None-Match", ""))):
        response = HttpResponseNotModified()
    else:
        name = f"card-run-{run.pk}-{_plain(run.name)}.zip"
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


def _plain(name: str) -> str:
    """A run's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "card"
