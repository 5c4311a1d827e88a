"""What a person does to a run with one press: launch, pause, resume, cancel; its priority, a checkpoint's pin,
imported results."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST

from cohort.accounts.models import Role
from cohort.base.storable import storable
from cohort.contamination.selectors import of_run, token
from cohort.evaluations.services import Upload, results_import
from cohort.lab.gate import FIELD, gate
from cohort.lab.prompts import prompts_unchecked
from cohort.launch import creation
from cohort.runs import services
from cohort.runs.models import Checkpoint, ImportedResult, Priority, Run, RunState
from cohort.runs.transitions import ENDED, IllegalTransition
from cohort.web.access import form_page, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.catalog.suite_forms import FilesField, plain
from cohort.web.fields import ServiceForm
from cohort.web.runs.header import Header
from grpo_core.errors import ConfigError


class ImportForm(ServiceForm):
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
@form_page
def run_import(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The CSRF check comes after the check of the role, because it reads the upload."""
    return _import(request, run_for(request, slug, run_id, at_least=Role.OPERATOR))


@csrf_protect
def _import(request: HttpRequest, run: Run) -> HttpResponse:
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    if request.method == "POST" and form.is_valid():
        uploads = [Upload(plain(upload.name, 200), upload.read()) for upload in form.cleaned_data["upload"]]
        phase = form.cleaned_data["phase"]
        rows = form.call(results_import, run=run, actor=person(request), phase=phase, uploads=uploads)
        if rows is not None:
            count = f"{len(rows):,} result{'s are' if len(rows) != 1 else ' is'}"
            messages.success(request, f"{count} imported, as stated.")
            return redirect("run_evaluations", run.project.slug, run.pk)
    return render(request, "runs/import.html", Header(run).context("evaluations", form=form), status=form.status)


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
            of_config = any(problem.path for problem in error.problems)
            fix = " Clone the run and change that." if of_config else ""
            messages.error(request, f"Nothing was done: {'; '.join(problems).removesuffix('.')}.{fix}")
            return redirect("run_detail", slug, run.pk)
        return _confirm(request, run, error)
    else:
        messages.success(request, f"{run.name} is in the queue.")
    return redirect("run_detail", slug, run.pk)


def _confirm(request: HttpRequest, run: Run, error: ConfigError) -> HttpResponse:
    """What a person must confirm to launch this draft anyway: that evaluation items in the training data were seen,
    why a reward that fails its probe is used or prompts are not checked."""
    pairs, reason = of_run(run), request.POST.get(FIELD, "")
    faults = [problem.message for problem in error.problems if problem.path == FIELD] if reason.strip() else []
    context = {
        "run": run,
        "pairs": pairs,
        "token": token(pairs),
        "overlap_seen": request.POST.get("overlap_seen", ""),
        "gate": gate(run.verifier_version, run.dataset) if run.has_samples else None,
        "probe_override": reason,
        "override_faults": faults,
        "prompts_unchecked": prompts_unchecked(run),
    }
    return render(request, "runs/launch_confirm.html", context, status=409)


@require_POST
def run_cancel(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    return _act(request, slug, run_id, services.run_cancel, _cancelled, reason=reason_of(request))


def _cancelled(run: Run) -> str:
    if run.state == RunState.CANCELLED:
        return "is cancelled. " + ("No worker has it now." if run.fence else "It had not started.")
    if run.state == RunState.FAILED:
        return "has ended without a record. Its weights and checkpoints stay."
    return (
        "is being cancelled: the worker stops the trainer at its next sign of life, within seconds. What has been "
        "recorded stays."
    )


@require_POST
def run_pause(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    return _act(request, slug, run_id, services.run_pause, _paused, reason=reason_of(request))


def _paused(run: Run) -> str:
    if run.state == RunState.PAUSED:
        return "is paused: it is out of the queue until somebody resumes it."
    return (
        "is being paused: the worker has the trainer write a checkpoint and stop. It resumes from there when somebody "
        "resumes it."
    )


@require_POST
def run_resume(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Of a paused run; or withdraws a pause that its worker has not come to."""
    return _act(request, slug, run_id, services.run_resume, _resumed)


def _resumed(run: Run) -> str:
    if run.state != RunState.QUEUED:
        return "continues: the pause was withdrawn before the worker came to it."
    header = Header(run)
    return "is in the queue again" + (f" and continues {header.resumes_at}." if header.again else ".")


@require_POST
def run_priority(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """From the queue page, and back to it."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    requested = request.POST.get("priority", "")
    chosen = next((priority for priority in Priority if str(priority.value) == requested), None)
    if chosen is None:
        words = ", ".join(f"{priority.value} ({priority.label.lower()})" for priority in Priority)
        messages.error(request, f"Nothing was done: a priority is one of {words}.")
    else:
        refused = refusal(run, services.run_prioritise, run=run, actor=person(request), priority=chosen.value)
        words = f"{run.name} has {chosen.label.lower()} priority among the runs of this project."
        _report(request, refused, words)
    return redirect("queue", slug)


@require_POST
def checkpoint_pin(request: HttpRequest, slug: str, run_id: int, checkpoint_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("run"), run=run, pk=checkpoint_id)
    pinned = request.POST.get("pinned") == "true"
    refused = refusal(run, services.checkpoint_pin, checkpoint=checkpoint, actor=person(request), pinned=pinned)
    outcome = "is pinned: it stays" if pinned else "is no longer pinned: it goes when newer ones need its room"
    _report(request, refused, f"The checkpoint at step {checkpoint.step:,} {outcome}.")
    return redirect(reverse("run_attempts", args=[slug, run.pk]) + CHECKPOINTS)


def _act(
    request: HttpRequest,
    slug: str,
    run_id: int,
    service: Callable[..., None],
    outcome: Callable[[Run], str],
    **arguments: Any,
) -> HttpResponse:
    """Call a service with the run and go back to its page, with what became of the run."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    refused = refusal(run, service, run=run, actor=person(request), **arguments)
    _report(request, refused, f"{run.name} {outcome(run)}")
    return redirect_to(request, "run_detail", slug, run_id)


def _report(request: HttpRequest, refused: str, done: str) -> None:
    messages.add_message(request, messages.ERROR if refused else messages.SUCCESS, refused or done)


# ---------------------------------------------------------------- shared with retry and extend


def reason_of(request: HttpRequest) -> str:
    return storable(request.POST.get("reason", "").strip())


def refusal(run: Run, service: Callable[..., None], /, **arguments: Any) -> str:
    """Call the service and reload the run. Returns why it was refused; empty when it was not."""
    reason = ""
    try:
        service(**arguments)
    except IllegalTransition as error:
        reason = f"{run.name} is {error.state.label.lower()}. {_why_not(error.state)}"
    except services.NotPossible as error:
        reason = f"{error}."
    except ConfigError as error:
        reason = "; ".join(str(problem) for problem in error.problems or [error]) + "."
    run.refresh_from_db(fields=["state", "desired", "fence"])
    return f"Nothing was done: {reason}" if reason else ""


def _why_not(state: RunState) -> str:
    """What a person can do instead, or what it waits for."""
    if state in ENDED:
        return "It has already ended."
    return {
        RunState.SEALING: "It has been trained and only waits for its record.",
        RunState.DRAFT: "It has not been launched.",
        RunState.PAUSED: "Resume it, or cancel it.",
        RunState.QUEUED: "It is waiting for a worker already.",
    }.get(state, "A worker has it: pause or cancel it first.")
