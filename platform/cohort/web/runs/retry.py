"""Queueing a run again: retry one that failed or was cancelled from a chosen checkpoint, train one for longer.

Each is a separate page; a run's page opens the same form in a dialog where the browser runs scripts.
"""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.runs import services
from cohort.runs.checkpoints import resumable
from cohort.runs.models import Checkpoint, Run
from cohort.web.access import form_page, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.context import listed
from cohort.web.runs.actions import reason_of, refusal
from cohort.web.runs.header import Header
from cohort.web.runs.tries import checkpoint_rows

CHOICES = 20
"""Checkpoints offered on one page."""
START = "start"


@form_page
def run_retry(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """`from` is a checkpoint's id, or `start`."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    if request.method != "POST":
        return _retry_page(request, run)
    requested = request.POST.get("from", "")
    chosen = resumable(run).filter(pk=natural(requested) or 0).first()
    if chosen is None and requested != START:
        return _retry_page(request, run, fault="Choose a checkpoint of the list, or the first step.")
    arguments = {"checkpoint": chosen, "from_start": chosen is None, "reason": reason_of(request)}
    if fault := refusal(run, services.run_retry, run=run, actor=person(request), **arguments):
        return _retry_page(request, run, fault=fault)
    messages.success(request, f"{run.name} is in the queue again and {_resumes(chosen)}.")
    return redirect_to(request, "run_detail", slug, run_id)


@form_page
def run_extend(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """`steps` more than planned."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    if request.method != "POST":
        return _extend_page(request, run)
    text = request.POST.get("steps", "").strip()
    steps = natural(text)
    if steps is None:
        given = f"; given {text}" if text else ""
        return _extend_page(request, run, text=text, fault=f"Steps must be a whole number, 1 or more{given}.")
    if fault := refusal(run, services.run_extend, run=run, actor=person(request), steps=steps):
        return _extend_page(request, run, text=text, fault=fault)
    run.refresh_from_db(fields=["steps_total"])
    messages.success(request, f"{run.name} is in the queue again and continues to step {run.steps_total:,}.")
    return redirect_to(request, "run_detail", slug, run_id)


def _resumes(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "begins at its first step"
    if checkpoint.step == 0:
        return "begins at step 1 with the evaluation before training that it has"
    return f"resumes from step {checkpoint.step:,}"


def _retry_page(request: HttpRequest, run: Run, *, fault: str = "") -> HttpResponse:
    run.refresh_from_db()
    offered = resumable(run).select_related("attempt__node").defer("attempt__manifest", "attempt__outcome")
    rows = listed(request, offered, CHOICES, row=checkpoint_rows)
    chosen = request.POST.get("from") or next((str(row.checkpoint.pk) for row in rows if row.reachable), START)
    shown = {"rows": rows, "chosen": chosen, "reason": request.POST.get("reason", "")}
    return _page(request, Header(run), "retry", fault=fault, **shown)


def _extend_page(request: HttpRequest, run: Run, *, text: str | None = None, fault: str = "") -> HttpResponse:
    run.refresh_from_db()
    header = Header(run)
    planned = run.steps_total
    place = None if run.from_start else run.resume_from or resumable(run).first()
    steps = str(planned) if text is None else text
    return _page(request, header, "extend", place=place, planned=planned, steps=steps, fault=fault)


def _page(request: HttpRequest, header: Header, name: str, *, fault: str, **more: object) -> HttpResponse:
    """The form alone for a dialog, else the page that holds it."""
    dialog = bool(request.htmx) and request.method == "GET"  # type: ignore[attr-defined]
    template = f"runs/_{name}.html" if dialog else f"runs/{name}.html"
    context = header.context("", dialog=dialog, fault=fault, **more)
    return render(request, template, context, status=422 if fault else 200)
