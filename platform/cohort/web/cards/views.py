"""Cards to take away, the checker, and asking for a further version of a record. Fetch, authorise, call, render."""

import re

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.cache import patch_cache_control
from django.utils.http import parse_etags
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.base import artifacts
from cohort.base.formatting import natural
from cohort.evidence import pyz
from cohort.records.models import Audience, Card, Record
from cohort.records.services import version_request
from cohort.runs.models import Run
from cohort.web.access import run_for
from cohort.web.accounts.views import person
from cohort.web.audit.downloads import downloaded
from cohort.web.cards.selectors import may_download, role_in


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
        context = {"project": run.project, "run": run, "card": card, "newest": card.record.card(card.audience)}
        return render(request, "cards/card_gone.html", context, status=410)
    etag = f'"{card.sha256}"'
    response: HttpResponseBase
    if {etag, "*"} & set(parse_etags(request.headers.get("If-None-Match", ""))):
        response = HttpResponseNotModified()
    else:
        downloaded(
            request,
            kind="card_downloaded",
            subject=f"record:{card.record_id}",
            project=run.project,
            data={"audience": card.audience, "issue": card.issue, "sha256": card.sha256},
        )
        response = FileResponse(
            artifacts.open_read(card.artifact),
            as_attachment=True,
            filename=_file_name(run, card),
            content_type="application/zip",
        )
        response["Content-Length"] = str(card.size)
    response["ETag"] = etag
    patch_cache_control(response, private=True, no_cache=True)
    return response


@require_safe
def verify_pyz(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The checker that every card holds, from the platform instead of from a card."""
    run_for(request, slug, run_id)
    headers = {"Content-Disposition": 'attachment; filename="verify.pyz"'}
    return HttpResponse(pyz.build(), content_type="application/zip", headers=headers)


@require_POST
def version_seal(request: HttpRequest, slug: str, run_id: int, end: int) -> HttpResponse:
    """Ask for a further version of the newest record, with what was stated since."""
    run = run_for(request, slug, run_id, at_least=Role.REVIEWER)
    if not Record.objects.filter(run=run, end=end).exists():
        raise Http404("this run has no such record")
    try:
        version_request(run=run, actor=person(request), reason=request.POST.get("reason", ""))
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    else:
        messages.success(request, "Another version of the record is being sealed. It stands here once it is.")
    return redirect("record_of_end", slug, run_id, end)


def _card(
    run: Run, end: int | None, version: int | None, audiences: list[str] | None, role: str, issue: int | None
) -> Card:
    records = Record.objects.filter(run=run).order_by("-end", "-version")
    if end is not None:
        records = records.filter(end=end)
    if version is not None:
        records = records.filter(version=version)
    record = records.first()
    if record is None:
        raise Http404("this run has no such record")
    cards = record.cards.select_related("record").order_by("-issue")
    if issue is not None:
        cards = cards.filter(issue=issue)
    of = {card.audience: card for card in reversed(cards)}
    preferred = audiences or [name for name in reversed(Audience.values) if may_download(role, name)]
    chosen = next((of[name] for name in preferred if name in of), None)
    if chosen is None:
        raise Http404("this record has no such card")
    return chosen


def _file_name(run: Run, card: Card) -> str:
    which = f"-end-{card.record.end}" if card.record.end > 1 else ""
    which += f"-version-{card.record.version}" if card.record.version > 1 else ""
    plain = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")[:40] or "card"
    return f"card-run-{run.pk}{which}-{plain}-{card.audience}.zip"
