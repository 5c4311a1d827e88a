"""The public page of a record, at an address that cannot be guessed: no sign-in, nothing of the project but what the
public record itself shows. A wrong token, an ended one and one that cannot be a token get the same answer."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from cohort.audit import services as audit
from cohort.audit.entries import MOST, WITHIN, many
from cohort.evidence.record import redact
from cohort.records.after_seal.rules import standing_of
from cohort.records.after_seal.services import public_record
from cohort.records.cards.pdf import card_pdf, summary_pdf
from cohort.records.cards.stored import stored_reading
from cohort.records.document_view import view_document
from cohort.records.models import Audience, Card, Record
from cohort.web.access import file_response
from cohort.web.after_seal.timeline import entries_of
from cohort.web.cards.summaries import PDF, sign_off_of, summary_of
from cohort.web.cards.views import card_response


def _open(view: Callable[[HttpRequest, Record], HttpResponseBase]) -> Callable[[HttpRequest, str], HttpResponseBase]:
    """A view of the record that the token opens, for anyone; the same 404 for every other token."""

    @wraps(view)
    def opened(request: HttpRequest, token: str) -> HttpResponseBase:
        record = public_record(token)
        response: HttpResponseBase
        if record is None:
            response = HttpResponse(render_to_string("after_seal/public_none.html"), status=404)
        else:
            response = view(request, record)
        response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
        response["Referrer-Policy"] = "no-referrer"
        response.setdefault("Cache-Control", "private, no-store")
        return response

    return login_not_required(require_safe(opened))


@_open
def public_card_page(request: HttpRequest, record: Record) -> HttpResponse:
    context = {"page": public_page(record), "token": request.resolver_match.kwargs["token"]}  # type: ignore[union-attr]
    return HttpResponse(render_to_string("after_seal/public_page.html", context))


@_open
def public_card_download(request: HttpRequest, record: Record) -> HttpResponseBase:
    card = _public_card(record)
    if card is None:
        return HttpResponse(render_to_string("after_seal/public_none.html"), status=404)
    given = {"audience": card.audience, "issue": card.issue, "sha256": card.sha256}
    log = partial(_log, request, record, "card_downloaded", given)
    return card_response(request, card, f"card-{record.seal[:16]}.zip", log)


@_open
def public_summary(request: HttpRequest, record: Record) -> HttpResponse:
    context = {"summary": summary_of(record, Audience.PUBLIC), "token": request.resolver_match.kwargs["token"]}  # type: ignore[union-attr]
    return HttpResponse(render_to_string("after_seal/public_summary.html", context))


@_open
def public_summary_pdf(request: HttpRequest, record: Record) -> HttpResponse:
    content = summary_pdf(summary_of(record, Audience.PUBLIC))
    given = {"audience": "public", "sha256": hashlib.sha256(content).hexdigest()}
    _log(request, record, "summary_downloaded", given)
    return file_response(content, PDF, f"summary-{record.seal[:16]}.pdf")


@_open
def public_card_pdf(request: HttpRequest, record: Record) -> HttpResponse:
    card = _public_card(record)
    if card is None:
        return HttpResponse(render_to_string("after_seal/public_none.html"), status=404)
    content = card_pdf(stored_reading(card), sign_off_of(record, Audience.PUBLIC))
    given = {"audience": card.audience, "issue": card.issue, "sha256": hashlib.sha256(content).hexdigest()}
    _log(request, record, "card_pdf_downloaded", given)
    return file_response(content, PDF, f"card-{record.seal[:16]}.pdf")


@transaction.atomic
def _log(request: HttpRequest, record: Record, kind: str, given: dict[str, Any]) -> None:
    """Anyone with the address may download without limit; the log must not grow with it."""
    if request.method != "GET":
        return
    subject = f"record:{record.pk}"
    if many(MOST, kind=kind, subject=subject, actor="anonymous"):
        if not many(1, kind="card_downloads_flooded", subject=subject):
            audit.log(
                actor="platform",
                kind="card_downloads_flooded",
                subject=subject,
                project=record.run.project,
                reason=f"The public card or summary was downloaded more than {MOST} times within "
                f"{WITHIN.total_seconds() / 60:.0f} minutes; the others of this time are in the web server's own log "
                "alone.",
            )
        return
    audit.log(
        actor="anonymous",
        kind=kind,
        subject=subject,
        project=record.run.project,
        data={**given, "by": "public link"},
    )


def public_page(record: Record) -> dict[str, Any]:
    """For the template. `shown` is of the redacted document: no value of a field that is not public is in it.
    `withheld` are those fields: their labels are those of every record, and their entries hold a hash. `later` is the
    newest record of the run, when that is not this."""
    whole = view_document(redact(json.loads(record.document), Audience.PUBLIC))
    blocks = tuple(replace(block, rows=tuple(row for row in block.rows if not row.withheld)) for block in whole.blocks)
    newest = Record.objects.filter(run=record.run_id).defer("document").order_by("-end", "-version").first()
    return {
        "record": record,
        "shown": replace(whole, blocks=tuple(block for block in blocks if block.rows)),
        "withheld": [row for block in whole.blocks for row in block.rows if row.withheld],
        "standing": standing_of(entries_of([record.pk])),
        "later": newest if newest is not None and newest.pk != record.pk else None,
        "card": _public_card(record),
    }


def _public_card(record: Record) -> Card | None:
    return Card.objects.filter(record=record, audience=Audience.PUBLIC).order_by("-issue").first()
