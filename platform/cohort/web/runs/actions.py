"""What a person does to a run with one press: launch, pause, resume, cancel; its priority, a checkpoint's pin."""

import re
from collections.abc import Callable

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from cohort.accounts.models import Role
from cohort.base.storable import storable
from cohort.contamination.selectors import of_run, token
from cohort.evaluations.imports import Upload
from cohort.evaluations.services import results_import
from cohort.lab.gate import FIELD, gate
from cohort.launch import creation
from cohort.runs import services
from cohort.runs.models import Checkpoint, ImportedResult, Priority, Run, RunState
from cohort.runs.transitions import ENDED, IllegalTransition
from cohort.web.access import run_for
from cohort.web.accounts.views import person
from cohort.web.catalog.forms import CatalogForm
from cohort.web.catalog.suite_forms import FilesField
from cohort.web.runs.header import run_header
from grpo_core.errors import ConfigError


class ImportForm(CatalogForm):
    phase = forms.ChoiceField(
        choices=[("", "choose"), *ImportedResult.Phase.choices],
        label="Weights that were measured",
        help_text="Cohort cannot see which weights the tool loaded: this is your word, and is shown as such.",
    )
    upload = FilesField(
        label="Files",
        allow_empty_file=True,
        help_text="A log of Inspect (.eval or .json), or results_….json of lm-evaluation-harness with any of its "
        "samples_….jsonl. 64 MiB at most.",
    )


@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def run_import(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The check for a forged form comes after that of the role, because it reads the upload."""
    return _import(request, run_for(request, slug, run_id, at_least=Role.OPERATOR))


@csrf_protect
def _import(request: HttpRequest, run: Run) -> HttpResponse:
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    if request.method == "POST" and form.is_valid():
        given = [Upload(_plain(upload.name), upload.read()) for upload in form.cleaned_data["upload"]]
        try:
            rows = results_import(run=run, actor=person(request), phase=form.cleaned_data["phase"], uploads=given)
        except ValidationError as error:
            form.take(error)
        else:
            count = f"{len(rows):,} result{'s are' if len(rows) != 1 else ' is'}"
            messages.success(request, f"{count} imported, as stated.")
            return redirect("run_evaluations", run.project.slug, run.pk)
    context = {"project": run.project, "run": run, "header": run_header(run), "tab": "evaluations", "form": form}
    return render(request, "runs/import.html", context, status=422 if form.errors else 200)


def _plain(name: str | None) -> str:
    """A file's name as messages and rows may hold it."""
    return re.sub(r"[^\w.() -]+", "_", name or "file")[-200:]


CHECKPOINTS = "#checkpoints"


@require_POST
def run_submit(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    seen, reason = request.POST.get("overlap_seen", ""), request.POST.get(FIELD, "")
    try:
        creation.run_submit(run=run, actor=person(request), overlap_seen=seen, probe_override=reason)
    except IllegalTransition as error:
        messages.error(request, f"Nothing was done: {run.name} is {error.state.label.lower()}, not a draft.")
    except ConfigError as error:
        run.refresh_from_db()
        if problems := [str(problem) for problem in error.problems if problem.path not in ("overlap_seen", FIELD)]:
            messages.error(request, f"Nothing was done: {'; '.join(problems)}. Clone the run and change that.")
            return redirect("run_detail", slug, run.pk)
        return _confirm(request, run, error)
    else:
        messages.success(request, f"{run.name} is in the queue.")
    return redirect("run_detail", slug, run.pk)


def _confirm(request: HttpRequest, run: Run, error: ConfigError) -> HttpResponse:
    """What a person must confirm to launch this draft anyway: that evaluation items in the training data were seen,
    why a reward that pays wrong answers is used."""
    pairs, reason = of_run(run), request.POST.get(FIELD, "")
    faults = [problem.message for problem in error.problems if problem.path == FIELD] if reason.strip() else []
    context = {
        "project": run.project,
        "run": run,
        "pairs": pairs,
        "token": token(pairs),
        "overlap_seen": request.POST.get("overlap_seen", ""),
        "gate": gate(run.verifier_version, run.dataset),
        "probe_override": reason,
        "override_faults": faults,
    }
    return render(request, "runs/launch_confirm.html", context, status=409)


@require_POST
def run_cancel(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    refused = attempted(
        request, run, lambda: services.run_cancel(run=run, actor=person(request), reason=reason_of(request))
    )
    if not refused and run.state == RunState.CANCELLED:
        had = "No worker has it now." if run.fence else "It had not started."
        messages.success(request, f"{run.name} is cancelled. {had}")
    elif not refused and run.state == RunState.FAILED:
        messages.success(request, f"{run.name} has ended without a record. Its weights and checkpoints stay.")
    elif not refused:
        messages.success(
            request,
            f"{run.name} is being cancelled: the worker stops the trainer at its next sign of life, within seconds. "
            "What has been recorded stays.",
        )
    return back(request, run)


@require_POST
def run_pause(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    refused = attempted(
        request, run, lambda: services.run_pause(run=run, actor=person(request), reason=reason_of(request))
    )
    if not refused and run.state == RunState.PAUSED:
        messages.success(request, f"{run.name} is paused: it is out of the queue until somebody resumes it.")
    elif not refused:
        messages.success(
            request,
            f"{run.name} is being paused: the worker has the trainer write a checkpoint and stop. It resumes from "
            "there when somebody resumes it.",
        )
    return back(request, run)


@require_POST
def run_resume(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Of a paused run; or withdraws a pause that its worker has not come to."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    refused = attempted(request, run, lambda: services.run_resume(run=run, actor=person(request)))
    if not refused and run.state == RunState.QUEUED:
        header = run_header(run)
        where = f" and continues {header.goes_on}" if header.again else ""
        messages.success(request, f"{run.name} is in the queue again{where}.")
    elif not refused:
        messages.success(request, f"{run.name} continues: the pause was withdrawn before the worker came to it.")
    return back(request, run)


@require_POST
def run_priority(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """From the queue page, and back to it."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    requested = request.POST.get("priority", "")
    chosen = next((priority for priority in Priority if str(priority.value) == requested), None)
    if chosen is None:
        words = ", ".join(f"{priority.value} ({priority.label.lower()})" for priority in Priority)
        messages.error(request, f"Nothing was done: a priority is one of {words}.")
    elif not attempted(
        request, run, lambda: services.run_prioritise(run=run, actor=person(request), priority=chosen.value)
    ):
        messages.success(request, f"{run.name} has {chosen.label.lower()} priority among the runs of this project.")
    return redirect("queue", slug)


@require_POST
def checkpoint_pin(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    checkpoint = Checkpoint.objects.filter(run=run, pk=checkpoint_id).select_related("run").first()
    if checkpoint is None:
        raise Http404
    pinned = request.POST.get("pinned") == "true"
    refused = attempted(
        request, run, lambda: services.checkpoint_pin(checkpoint=checkpoint, actor=person(request), pinned=pinned)
    )
    if not refused:
        outcome = "is pinned: it stays" if pinned else "is no longer pinned: it goes when newer ones need its room"
        messages.success(request, f"The checkpoint at step {checkpoint.step:,} {outcome}.")
    return redirect(reverse("run_attempts", args=[slug, run.pk]) + CHECKPOINTS)


# ---------------------------------------------------------------- shared with retry and extend


def reason_of(request: HttpRequest) -> str:
    return storable(request.POST.get("reason", "").strip())


def attempted(request: HttpRequest, run: Run, do: Callable[[], None]) -> str:
    """Call the service and reload the run. A refusal is shown as a message and returned; empty when there was none."""
    refused = ""
    try:
        do()
    except IllegalTransition as error:
        refused = f"{run.name} is {error.state.label.lower()}. {why_not(error.state)}"
    except services.NotPossible as error:
        refused = f"{error}."
    if refused:
        messages.error(request, f"Nothing was done: {refused}")
    run.refresh_from_db(fields=["state", "desired", "fence"])
    return refused


def back(request: HttpRequest, run: Run) -> HttpResponse:
    """To the run's page, also for htmx."""
    if request.htmx:  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(reverse("run_detail", args=[run.project.slug, run.pk]))
    return redirect("run_detail", run.project.slug, run.pk)


def why_not(state: RunState) -> str:
    """What a person can do instead, or what it waits for."""
    if state == RunState.SEALING:
        return "It has been trained and only waits for its record."
    if state in ENDED:
        return "It has already ended."
    if state == RunState.DRAFT:
        return "It has not been launched."
    if state == RunState.PAUSED:
        return "Resume it, or cancel it."
    if state == RunState.QUEUED:
        return "It is waiting for a worker already."
    return "A worker has it: pause or cancel it first."
