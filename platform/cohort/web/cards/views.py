"""Cards to take away, the checker, and requests for a further version of a record. Fetch, authorise, call, render."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils.http import parse_etags
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role, reaches
from cohort.base import artifacts
from cohort.base.formatting import natural
from cohort.evidence import pyz
from cohort.records.cards.download import download
from cohort.records.models import Audience, Card, Record
from cohort.records.news import News
from cohort.records.schema_types import AUDIENCE_WORDS
from cohort.records.services import newest, request_record, version_pending, version_request
from cohort.records.status.services import StatusPending
from cohort.runs.models import Run
from cohort.runs.transitions import ENDED
from cohort.web.access import call_service, file_response, role_in, run_for, streamed
from cohort.web.accounts.views import person
from cohort.web.audit.selectors import downloaded

HOLDS = {
    Audience.PUBLIC: "What anyone may see: the record's public fields, every item's score, the commitments.",
    Audience.DOWNSTREAM: "Also the config, the numbers of every step, and the texts of items that are not sensitive.",
    Audience.AUTHORITY: "Also the trainer's manifest and totals, the kept traces with prompts and completions, and the "
    "texts of sensitive items.",
    Audience.INTERNAL: "Everything: also every event of the run with the names of who did it, and all prompts and "
    "completions that were kept. Not to be handed on.",
}
_FOR_WHOM = {Audience(name): words for name, words in AUDIENCE_WORDS.items()}
_FOR_EVERY_MEMBER = (Audience.PUBLIC, Audience.DOWNSTREAM)


def may_download(role: str, audience: str) -> bool:
    """Members take the public card and the one for downstream; the others need a reviewer's role."""
    return bool(role) and (audience in _FOR_EVERY_MEMBER or reaches(role, Role.REVIEWER))


def require_allowed(run: Run, role: str, audience: str) -> None:
    """Raises Http404 for an audience that there is not, and PermissionDenied for one whose card this role may not
    take."""
    if audience not in Audience.values:
        raise Http404(f"there is no audience {audience}")
    if not may_download(role, audience):
        raise PermissionDenied(
            f"The card for {Audience(audience).label.lower()} needs the role {Role.REVIEWER.value}; yours in "
            f"{run.project.name} is {role}. An admin of the project can change it."
        )


def downloads(record: Record, role: str, news: News | None = None) -> dict[str, Any]:
    """The newest issue for each audience that the record has a card for, the public one first; whether the person may
    request a further version, because there is news that this one does not hold (`news`, where the caller has it); the
    reason of one that was requested and is not sealed yet."""
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
        "may_seal": may_seal and bool(News(record) if news is None else news),
        "pending": pending.reason if pending else "",
    }


@require_safe
def card_download(
    request: HttpRequest,
    slug: str,
    run_id: int,
    end: int | None = None,
    version: int | None = None,
    audience: str = Audience.PUBLIC,
) -> HttpResponseBase:
    """The card of the run's newest record, or of the one of its end number `end`, or of a version of that; the public
    one, where no audience is named. `?issue=` gives an earlier issue, and `?version=` an earlier version of the end."""
    run = run_for(request, slug, run_id)
    require_allowed(run, role_in(run.project, person(request)), audience)
    version = version if version is not None else natural(request.GET.get("version"))
    card = card_at(run, end, version, audience, natural(request.GET.get("issue")))
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
    return card_response(request, card, file_name(run, card.record, card.audience, "zip"), log)


def card_response(request: HttpRequest, card: Card, filename: str, log: Callable[[], None]) -> HttpResponseBase:
    """The card with its record's status as a file, logged by `log`; 304 to a client that has both already; 503 with a
    page for people while the status is being signed."""
    try:
        made = download(card)
    except StatusPending as why:
        return status_pending(why)
    etag = f'"{made.tag}"'
    response: HttpResponseBase
    if {etag, "*"} & set(parse_etags(request.headers.get("If-None-Match", ""))):
        made.close()
        response = HttpResponseNotModified()
    else:
        log()
        response = streamed(made, "application/zip", filename)
        response["Content-Length"] = str(made.size)
    response["ETag"] = etag
    return response


def status_pending(why: StatusPending) -> HttpResponse:
    """Tells people and programs to come back in a few seconds."""
    content = render_to_string("cards/status_pending.html", {"why": why})
    return HttpResponse(content, status=503, headers={"Retry-After": "3", "Refresh": "3"})


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


def record_at(run: Run, end: int | None, version: int | None) -> Record:
    """The newest record of the run, of its end, or of a version of that. Raises Http404."""
    given = {name: value for name, value in (("end", end), ("version", version)) if value is not None}
    record = Record.objects.filter(run=run, **given).order_by("-end", "-version").first()
    if record is None:
        raise Http404("this run has no such record")
    return record


def card_at(run: Run, end: int | None, version: int | None, audience: str, issue: int | None = None) -> Card:
    """The newest issue of the card for this audience, or the one with this number. Raises Http404."""
    cards = record_at(run, end, version).cards.filter(audience=audience).select_related("record").order_by("-issue")
    card = cards.first() if issue is None else cards.filter(issue=issue).first()
    if card is None:
        raise Http404("this record has no such card")
    return card


def file_name(run: Run, record: Record, kind: str, ending: str) -> str:
    """Such as `card-run-7-two-digit-addition-public.zip`. `kind`: the audience, and what of it."""
    version_text = f"-end-{record.end}" if record.end > 1 else ""
    version_text += f"-version-{record.version}" if record.version > 1 else ""
    plain = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")[:40] or "card"
    return f"card-run-{run.pk}{version_text}-{plain}-{kind}.{ending}"
