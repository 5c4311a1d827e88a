"""The list of records: found by name, by how they ended, by verdict, by sign-off; two of them chosen to be compared."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.records.after_seal.rules import State
from cohort.web.access import project_for
from cohort.web.records.listing import STATES, VERDICTS, record_page


@require_safe
def record_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    asked = request.GET
    page = record_page(
        project,
        before=natural(asked.get("before")),
        text=asked.get("q", ""),
        state=asked.get("state", ""),
        verdict=asked.get("verdict", ""),
        signed=asked.get("signed", ""),
    )
    query = asked.copy()
    query.pop("before", None)
    context = {
        "project": project,
        "page": page,
        "query": query.urlencode(),
        "states": STATES,
        "verdicts": {kind: words for kind, (words, _) in VERDICTS.items()},
        "signed": State.choices,
    }
    return render(request, "records/record_list.html", context)
