"""The page of what came after a record's seal: its timeline, and the forms to add to it. Works without JavaScript."""

from collections.abc import Callable

from django.contrib import messages
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.records.after_seal import services
from cohort.records.models import Record
from cohort.web.access import call_service, form_page, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.after_seal.offers import ACTIONS, Offer
from cohort.web.after_seal.timeline import Life


@form_page
def record_life(request: HttpRequest, slug: str, run_id: int, end: int) -> HttpResponse:
    """A form that is refused comes back here, with all that was typed in it."""
    record = _record(request, slug, run_id, end, at_least=Role.VIEWER)
    sent = None
    if request.method == "POST":
        name = request.POST.get("action", "")
        if name not in ACTIONS:
            raise BadRequest("no such action")
        run_for(request, slug, run_id, at_least=ACTIONS[name].at_least)
        sent = (name, request.POST)
    life = Life(request, record, sent=sent)
    if sent is not None:
        offer = next((candidate for candidate in life.offers if candidate.name == sent[0]), None)
        if offer is not None and _added(request, record, offer):
            return redirect(
                address(record) + ("" if offer.name == "revoke" else "#life")
            )  # what is revoked says so on top
        if offer is None:  # the action is no longer available, such as revoking a revoked record
            messages.error(request, "Nothing was written: it was done already.")
    context = {"run": record.run, "record": record, "life": life}
    return render(request, "after_seal/life_page.html", context, status=200 if sent is None else 422)


@require_POST
def record_public(request: HttpRequest, slug: str, run_id: int, end: int) -> HttpResponse:
    """Make the record's public page, or withdraw it."""
    record = _record(request, slug, run_id, end, at_least=Role.OPERATOR)
    service: Callable[..., object] = services.public_link_make
    done = "is made. Anyone with its address can read it."
    if request.POST.get("action") == "end":
        service, done = services.public_link_end, "is withdrawn: its address now answers as if it never was."
    call_service(request, service, f"The public page {done}", refused="Nothing was done: ", record=record)
    return redirect_to(request, address(record))


def address(record: Record) -> str:
    """Of the record's page, for exactly this version."""
    url = reverse("record_of_end", args=[record.run.project.slug, record.run_id, record.end])
    return f"{url}?version={record.version}"


def _record(request: HttpRequest, slug: str, run_id: int, end: int, *, at_least: Role) -> Record:
    """The version that the URL names, else the newest of this end."""
    run = run_for(request, slug, run_id, at_least=at_least)
    records = Record.objects.filter(run=run, end=end).defer("document").order_by("-version")
    if "version" in request.GET:
        records = records.filter(version=natural(request.GET["version"]) or 0)
    record = records.first()
    if record is None:
        raise Http404("there is no such record")
    record.run = run
    return record


def _added(request: HttpRequest, record: Record, offer: Offer) -> bool:
    """Whether the entry was stored; if not, the form holds the errors."""
    form, action = offer.form, offer.action
    if form is None or not form.is_valid():
        return False
    form.call(action.service, record=record, actor=person(request), **form.given())
    if not form.errors:
        messages.success(request, action.done)
    return not form.errors
