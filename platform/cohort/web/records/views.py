"""Pages of records. Fetch, authorise, render."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role, reaches
from cohort.base.formatting import natural
from cohort.evaluations.stages import StageChange, run_changes, weights_chain
from cohort.evidence.canonical import dig
from cohort.evidence.record import redact
from cohort.records.after_seal.rules import State
from cohort.records.cards.reading import Reading
from cohort.records.cards.training_content import summary_json, training_content
from cohort.records.document_view import Compared, compared, view_document
from cohort.records.models import Record
from cohort.records.news import News
from cohort.records.schema import Document
from cohort.records.schema_types import AUDIENCE_WORDS, Comparison, Entry
from cohort.records.services import seal_fault
from cohort.runs.models import Run
from cohort.web.access import project_for, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.after_seal.timeline import Life
from cohort.web.cards import status_views
from cohort.web.cards.views import downloads
from cohort.web.context import listed, query_without
from cohort.web.records.listing import STATES, VERDICTS, record_page

ENDS = 20
"""Records of a run on one page of their list."""


@dataclass(frozen=True)
class RecordRow:
    record: Record
    state: str
    compared: Compared | None
    """The first suite, for one line; None too for a record of the first schema."""
    suites: int
    newest: bool
    """Whether no later record supersedes it."""


@require_safe
def record_detail(request: HttpRequest, slug: str, run_id: int, end: int | None = None) -> HttpResponse:
    """The newest record of the run, or of its end number `end`; `?version=` gives an earlier one of that end."""
    run = run_for(request, slug, run_id)
    records = Record.objects.filter(run=run).select_related("run").order_by("-end", "-version")
    newest = records.defer("document").first()
    version = natural(request.GET.get("version"))
    chosen = records if end is None else records.filter(end=end)
    if end is not None and version is not None:
        chosen = chosen.filter(version=version)
    record = chosen.first()
    if record is None and (end is not None or version is not None):
        raise Http404("this run has no such record")
    row = _row(record, newest) if record is not None else None
    every = listed(request, records, ENDS, name="records", row=lambda rows: [_row(each, newest) for each in rows])
    context: dict[str, Any] = {"run": run, "row": row, "every": every, "record": record}
    user = person(request)
    role = role_in(run.project, user)
    if row is None:
        context |= {"fault": seal_fault(run), "may_request": reaches(role, Role.OPERATOR)}
    else:
        news = News(row.record)
        shown = Document.model_validate_json(row.record.document)
        offered = downloads(row.record, role, news)
        context |= {
            "shown": view_document(shown),
            "stages": _stages(run, shown),
            "downloads": offered,
            "fault": seal_fault(run) if offered["pending"] else "",
            "life": Life(request, row.record),
            "status": status_views.shown(row.record, role),
            "news": news if row.newest else None,
            "may_state": role != Role.VIEWER,
            "audiences": AUDIENCE_WORDS,
        }
    return render(request, "records/record_detail.html", context)


def _stages(run: Run, document: Document) -> list[StageChange]:
    """What each earlier stage and this one changed; empty where the run began from no run of this platform."""
    lineage = document.entry("subject.lineage")
    stages: list[Mapping[str, Any]] = dig(lineage.value if isinstance(lineage, Entry) else None, "stages") or []
    chain, begins_from = weights_chain(run, stages)
    if len(chain) < 2:
        return []
    by_pk = {each.pk: each for each in Run.objects.filter(pk__in=chain, project=run.project)}
    return run_changes([by_pk[pk] for pk in chain if pk in by_pk], begins_from)


def _row(record: Record, newest: Record | None) -> RecordRow:
    document: dict[str, Any] = json.loads(record.document)
    suites = document["sections"]["behaviour"]["performance"]["value"] or []
    first = compared(Comparison.model_validate(suites[0])) if suites else None
    return RecordRow(record, document["head"]["state"], first, len(suites), record == newest)


@require_safe
def training_content_page(
    request: HttpRequest, slug: str, run_id: int, end: int, version: int, as_json: bool = False
) -> HttpResponse:
    """The draft of the public summary of training content, from the fields that anyone may see: what a provider would
    publish. `as_json`: the file of the public card."""
    run = run_for(request, slug, run_id)
    record = get_object_or_404(Record.objects.filter(run=run), end=end, version=version)
    reading = Reading(redact(json.loads(record.document), "public"))
    if as_json:
        name = f"training-content-summary-run-{run.pk}-{end}-{version}.json"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return HttpResponse(summary_json(reading), content_type="application/json", headers=headers)
    context = {"run": run, "record": record, "summary": training_content(reading)}
    return render(request, "records/training_content.html", context)


@require_safe
def record_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    context = {
        "page": record_page(project, request.GET),
        "query": query_without(request, "before"),
        "states": STATES,
        "verdicts": {kind: words for kind, (words, _) in VERDICTS.items()},
        "signed": State.choices,
    }
    return render(request, "records/record_list.html", context)
