"""The record on one page for officers, and PDFs by themselves, with what has come after the seal until now. Fetch,
authorise, call, render."""

import hashlib
import json
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.evidence.record import redact
from cohort.records.cards import pdf
from cohort.records.cards.stored import stored_reading
from cohort.records.document_view import view_document
from cohort.records.models import Audience, Record
from cohort.records.summary import SignOff, Summary, signed_off, summarise
from cohort.web.access import file_response, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.after_seal.timeline import entries_of
from cohort.web.audit.selectors import downloaded
from cohort.web.cards.views import card_at, file_name, may_download, record_at, require_allowed

PDF = "application/pdf"


def summary_of(record: Record, audience: str) -> Summary:
    """As this audience gets it; `redact` leaves nothing of a withheld field but its hash."""
    document = json.loads(record.document)
    shown = document if audience == Audience.INTERNAL else redact(document, audience)
    return summarise(view_document(shown), sign_off_of(record, audience))


def sign_off_of(record: Record, audience: str) -> SignOff:
    """Who signed and what was reported until now, and whether the record is still in force."""
    later = Record.objects.filter(run=record.run_id).defer("document").order_by("-end", "-version").first()
    superseded = ""
    if later is not None and later.pk != record.pk:
        which = f"version {later.version}" if later.end == record.end else f"the record of end {later.end}"
        superseded = f"Superseded by {which}, sealed {later.sealed_at:%Y-%m-%d}, short digest {later.short_digest}."
    as_of = timezone.now().replace(second=0, microsecond=0)
    return signed_off(list(entries_of([record.pk])), audience=audience, superseded=superseded, as_of=as_of)


@require_safe
def record_summary(request: HttpRequest, slug: str, run_id: int, end: int | None = None) -> HttpResponse:
    """Of the run's newest record, or of its end number `end`, or of the `?version=` of that; for `?audience=`, public
    where none is named."""
    run = run_for(request, slug, run_id)
    role = role_in(run.project, person(request))
    audience = request.GET.get("audience", Audience.PUBLIC)
    require_allowed(run, role, audience)
    record = record_at(run, end, natural(request.GET.get("version")))
    context = {
        "run": run,
        "record": record,
        "summary": summary_of(record, audience),
        "audience": Audience(audience),
        "audiences": [each for each in Audience if may_download(role, each)],
    }
    return render(request, "cards/summary.html", context)


@require_safe
def pdf_of_summary(
    request: HttpRequest, slug: str, run_id: int, end: int, version: int, audience: str
) -> HttpResponseBase:
    """The summary as a PDF of one page."""
    run = run_for(request, slug, run_id)
    require_allowed(run, role_in(run.project, person(request)), audience)
    record = record_at(run, end, version)
    content = pdf.summary_pdf(summary_of(record, audience))
    log = partial(downloaded, request, subject=f"record:{record.pk}", project=run.project)
    log(kind="summary_downloaded", data={"audience": audience, "sha256": hashlib.sha256(content).hexdigest()})
    return file_response(content, PDF, file_name(run, record, f"{audience}-summary", "pdf"))


@require_safe
def pdf_of_card(
    request: HttpRequest, slug: str, run_id: int, end: int, version: int, audience: str
) -> HttpResponseBase:
    """The newest issue of a card as a PDF, with who has signed since on its first page."""
    run = run_for(request, slug, run_id)
    require_allowed(run, role_in(run.project, person(request)), audience)
    card = card_at(run, end, version, audience)
    try:
        reading = stored_reading(card)
    except FileNotFoundError:
        context = {"run": run, "card": card, "newest": card}
        return render(request, "cards/card_gone.html", context, status=410)
    content = pdf.card_pdf(reading, sign_off_of(card.record, audience))
    data = {"audience": audience, "issue": card.issue, "sha256": hashlib.sha256(content).hexdigest()}
    downloaded(request, kind="card_pdf_downloaded", subject=f"record:{card.record_id}", project=run.project, data=data)
    return file_response(content, PDF, file_name(run, card.record, audience, "pdf"))
