"""Cards to take away, the checker, and requests for a further version of a record. Fetch, authorise, call, render."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import parse_etags
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role, reaches
from cohort.base import artifacts
from cohort.base.formatting import natural
from cohort.evidence import pyz
from cohort.records.models import Audience, Card, Record
from cohort.records.news import News
from cohort.records.schema_types import AUDIENCE_WORDS
from cohort.records.services import newest, request_record, version_pending, version_request
from cohort.runs.models import Run
from cohort.runs.transitions import ENDED
from cohort.web.access import call_service, file_response, role_in, run_for
from cohort.web.accounts.views import person
from cohort.web.audit.selectors import downloaded

HOLDS = {
    Audience.PUBLIC: "What anyone may see: the record's public fields, every item's score, the commitments.",
    Audience.DOWNSTREAM: "Also the config, the numbers of every step, and the texts of items that are not sensitive.",
    Audience.AUTHORITY: "Also the trainer's manifest and totals, the kept traces, and the texts of sensitive items.",
    Audience.INTERNAL: "Everything: also what happened to the run, with the names of who did it.",
}
_FOR_WHOM = {Audience(name): words for name, words in AUDIENCE_WORDS.items()}
_FOR_EVERY_MEMBER = (Audience.PUBLIC, Audience.DOWNSTREAM)


def may_download(role: str, audience: str) -> bool:
    """Members take the public card and the one for downstream; the others need a reviewer's role."""
    return bool(role) and (audience in _FOR_EVERY_MEMBER or reaches(role, Role.REVIEWER))


def downloads(record: Record, role: str, news: News | None = None) -> dict[str, Any]:
    """The newest issue for each audience that the record has a card for, and of them the one with most in it that this
    person may take; whether the person may request a further version, because there is news that this one does not
    hold (`news`, where the caller has it); the reason of one that was requested and is not sealed yet."""
    cards: dict[str, Card] = {}
    for card in record.cards.order_by("issue"):
        cards[card.audience] = card
    listed = [
        {
            "audience": audience,
            "title": audience.label,
            "for_whom": _FOR_WHOM[audience],
            "holds": HOLDS[audience],
            "card": cards[audience],
            "allowed": may_download(role, audience),
        }
        for audience in Audience
        if audience in cards
    ]
    current = newest(record.run)
    is_newest = current is not None and current.pk == record.pk and record.run.state in ENDED
    pending = version_pending(record.run) if is_newest else None
    may_seal = is_newest and pending is None and bool(role) and reaches(role, Role.REVIEWER)
    return {
        "record": record,
        "cards": listed,
        "fullest": next((download for download in reversed(listed) if download["allowed"]), None),
        "may_seal": may_seal and bool(News(record) if news is None else news),
        "pending": pending.reason if pending else "",
    }


@require_safe
def card_download(
    request: HttpRequest, slug: str, run_id: int, end: int | None = None, version: int | None = None, audience: str = ""
) -> HttpResponseBase:
    """The card of the run's newest record, or of the one of its end number `end`, or of a version of that; for the
    audience that is named, else the one with most in it that this person may take. `?issue=` gives an earlier issue."""
    run = run_for(request, slug, run_id)
    role = role_in(run.project, person(request))
    if audience and audience not in Audience.values:
        raise Http404(f"there is no audience {audience}")
    if audience and not may_download(role, audience):
        raise PermissionDenied(
            f"The card for {Audience(audience).label.lower()} needs the role {Role.REVIEWER.value}; yours in "
            f"{run.project.name} is {role}. An admin of the project can change it."
        )
    card = _card(run, end, version, [audience] if audience else None, role, natural(request.GET.get("issue")))
    if not artifacts.exists(card.artifact):
        context = {"run": run, "card": card, "newest": card.record.card(card.audience)}
        return render(request, "cards/card_gone.html", context, status=410)
    log = partial(
        downloaded,
        request,
        kind="card_downloaded",
        subject=f"record:{card.record_id}",
        project=run.project,
        data={"audience": card.audience, "issue": card.issue, "sha256": card.sha256},
    )
    return card_response(request, card, _file_name(run, card), log)


def card_response(request: HttpRequest, card: Card, filename: str, log: Callable[[], None]) -> HttpResponseBase:
    """The card as a file, logged by `log`; 304 to a client that has it already."""
    etag = f'"{card.sha256}"'
    response: HttpResponseBase
    if {etag, "*"} & set(parse_etags(request.headers.get("If-None-Match", ""))):
        response = HttpResponseNotModified()
    else:
        log()
        content = artifacts.open_read(card.artifact)
        response = FileResponse(content, as_attachment=True, filename=filename, content_type="application/zip")
        response["Content-Length"] = str(card.size)
    response["ETag"] = etag
    return response


@require_safe
def verify_pyz(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The checker that every card holds, from the platform instead of from a card."""
    run_for(request, slug, run_id)
    return file_response(pyz.build(), "application/zip", "verify.pyz")


@require_POST
def record_request(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Request the record of the run's end again, after what kept it from being sealed was mended."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    call_service(request, request_record, "The record is requested again. It is shown here once it is sealed.", run=run)
    return redirect("record_detail", slug, run_id)


@require_POST
def version_seal(request: HttpRequest, slug: str, run_id: int, end: int) -> HttpResponse:
    """Request a further version of the newest record, with what was stated and judged since."""
    run = run_for(request, slug, run_id, at_least=Role.REVIEWER)
    if not Record.objects.filter(run=run, end=end).exists():
        raise Http404("this run has no such record")
    done = "Another version of the record is being sealed. It is shown here once it is."
    call_service(request, version_request, done, run=run, reason=request.POST.get("reason", ""))
    return redirect("record_of_end", slug, run_id, end)


def _card(
    run: Run, end: int | None, version: int | None, audiences: list[str] | None, role: str, issue: int | None
) -> Card:
    given = {name: value for name, value in (("end", end), ("version", version)) if value is not None}
    record = Record.objects.filter(run=run, **given).order_by("-end", "-version").first()
    if record is None:
        raise Http404("this run has no such record")
    cards = record.cards.select_related("record").order_by("-issue")
    if issue is not None:
        cards = cards.filter(issue=issue)
    by_audience = {card.audience: card for card in reversed(cards)}
    preferred = audiences or [name for name in reversed(Audience.values) if may_download(role, name)]
    chosen = next((by_audience[name] for name in preferred if name in by_audience), None)
    if chosen is None:
        raise Http404("this record has no such card")
    return chosen


def _file_name(run: Run, card: Card) -> str:
    version_text = f"-end-{card.record.end}" if card.record.end > 1 else ""
    version_text += f"-version-{card.record.version}" if card.record.version > 1 else ""
    plain = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")[:40] or "card"
    return f"card-run-{run.pk}{version_text}-{plain}-{card.audience}.zip"
