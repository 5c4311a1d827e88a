"""What a person does to a run: launch a draft, cancel."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST
from django_htmx.http import HttpResponseClientRedirect

from cohort.access import run_for
from cohort.accounts.models import Role
from cohort.accounts.views import person
from cohort.runs import services
from cohort.runs.models import Run, RunState
from cohort.runs.text import storable
from cohort.runs.transitions import IllegalTransition


@require_POST
def run_submit(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    try:
        services.run_submit(run=run, actor=person(request))
    except IllegalTransition as error:
        messages.error(request, f"Nothing was done: {run.name} is {error.state.label.lower()}, not a draft.")
    else:
        messages.success(request, f"{run.name} is in the queue.")
    return redirect("run_detail", slug, run.pk)


@require_POST
def run_cancel(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    reason = storable(request.POST.get("reason", "").strip())
    try:
        services.run_cancel(run=run, actor=person(request), reason=reason)
    except IllegalTransition as error:
        messages.error(request, f"Nothing was done: {run.name} is {error.state.label.lower()}. {_why_not(error.state)}")
    else:
        messages.success(request, _what_happens(run))
    if request.htmx:  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(reverse("run_detail", args=[slug, run.pk]))
    return redirect("run_detail", slug, run.pk)


def _what_happens(run: Run) -> str:
    run.refresh_from_db(fields=["state"])
    if run.state == RunState.CANCELLED:
        return f"{run.name} is cancelled. It had not started."
    return (
        f"{run.name} is being cancelled: the worker stops the trainer at its next sign of life, within seconds. "
        "What has been recorded stays."
    )


def _why_not(state: RunState) -> str:
    if state == RunState.SEALING:
        return "It has been trained and only waits for its record."
    return "It has already ended."
