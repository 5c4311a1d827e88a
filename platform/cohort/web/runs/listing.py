"""The list of runs."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.web.access import project_for
from cohort.web.runs.list_rows import STATES, run_page


@require_safe
def run_list(request: HttpRequest, slug: str) -> HttpResponse:
    """With `v`, the version that the page shows, it answers a poll: 204 when nothing changed, else the rows."""
    project = project_for(request, slug)
    page = run_page(
        project=project,
        state=request.GET.get("state", ""),
        text=request.GET.get("q", ""),
        before=natural(request.GET.get("before")),
        after=natural(request.GET.get("after")),
    )
    query = request.GET.copy()
    for name in ("before", "after", "v"):
        query.pop(name, None)
    here = request.GET.copy()
    here.pop("v", None)
    context = {"project": project, "page": page, "states": STATES, "query": query.urlencode(), "here": here.urlencode()}
    if "v" in request.GET:
        if request.GET["v"] == page.version:
            return HttpResponse(status=204)
        return render(request, "runs/_rows.html", context)
    return render(request, "runs/list.html", context)
