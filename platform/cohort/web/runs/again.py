"""Putting a run back to work: retry one that failed or was cancelled from a chosen checkpoint, train one for longer.

Each is a page of its own; a run's page opens the same form in a dialog where the browser runs scripts.
"""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.runs import services
from cohort.runs.checkpoints import resumable
from cohort.runs.models import Checkpoint, Run
from cohort.runs.transitions import IllegalTransition
from cohort.web.access import run_for
from cohort.web.accounts.views import person
from cohort.web.runs.actions import back, reason_of, why_not
from cohort.web.runs.checkpoints import resumable_rows
from cohort.web.runs.header import run_header
from grpo_core.errors import ConfigError

CHOICES = 20
"""Checkpoints offered at first."""
START = "start"


@require_http_methods(["GET", "HEAD", "POST"])
def run_retry(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """`from` is a checkpoint's id, or `start`."""
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    if request.method != "POST":
        return _retry_page(request, run)
    requested = request.POST.get("from", "")
    chosen = resumable(run).filter(pk=natural(requested) or 0).first()
    if chosen is None and requested != START:
        return _retry_page(request, run, fault="Choose a checkpoint of the list, or the first step.")
    fault = _fault(
        run,
        lambda: services.run_retry(
            run=run, actor=person(request), checkpoint=chosen, from_start=chosen is None, reason=reason_of(request)
        ),
    )
    if fault:
        return _retry_page(request, run, fault=fault)
    messages.success(request, f"{run.name} is in the queue again and {_goes_on(chosen)}.")
    return back(request, run)


@require_http_methods(["GET", "HEAD", "POST"])
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
    fault = _fault(run, lambda: services.run_extend(run=run, actor=person(request), steps=steps))
    if fault:
        return _extend_page(request, run, text=text, fault=fault)
    run.refresh_from_db(fields=["steps_total"])
    messages.success(request, f"{run.name} is in the queue again and continues to step {run.steps_total:,}.")
    return back(request, run)


def _fault(run: Run, do: Callable[[], None]) -> str:
    """Call the service and return the error message; empty on success."""
    try:
        do()
    except IllegalTransition as error:
        return f"Nothing was done: {run.name} is {error.state.label.lower()}. {why_not(error.state)}"
    except services.NotPossible as error:
        return f"Nothing was done: {error}."
    except ConfigError as error:
        return "Nothing was done: " + "; ".join(str(problem) for problem in error.problems or [error]) + "."
    return ""


def _goes_on(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "begins at its first step"
    if checkpoint.step == 0:
        return "begins at step 1 with the evaluation before training that it has"
    return f"resumes from step {checkpoint.step:,}"


def _retry_page(request: HttpRequest, run: Run, *, fault: str = "") -> HttpResponse:
    run.refresh_from_db()
    every = resumable(run).count()
    rows = resumable_rows(run, limit=None if request.GET.get("all") else CHOICES)
    context = {
        "project": run.project,
        "run": run,
        "header": run_header(run),
        "tab": "",
        "rows": rows,
        "every": every,
        "chosen": request.POST.get("from") or next((str(row.checkpoint.pk) for row in rows if row.reachable), START),
        "reason": request.POST.get("reason", ""),
        "fault": fault,
    }
    return _page(request, "retry", context, fault)


def _extend_page(request: HttpRequest, run: Run, *, text: str | None = None, fault: str = "") -> HttpResponse:
    run.refresh_from_db()
    header = run_header(run)
    context = {
        "project": run.project,
        "run": run,
        "header": header,
        "tab": "",
        "place": None if run.from_start else run.resume_from or resumable(run).first(),
        "planned": header.config.optim.steps,
        "steps": str(header.config.optim.steps) if text is None else text,
        "fault": fault,
    }
    return _page(request, "extend", context, fault)


def _page(request: HttpRequest, name: str, context: dict[str, object], fault: str) -> HttpResponse:
    """The form alone for a dialog, else the page that holds it."""
    dialog = bool(request.htmx) and request.method == "GET"  # type: ignore[attr-defined]
    template = f"runs/_{name}.html" if dialog else f"runs/{name}.html"
    return render(request, template, context | {"dialog": dialog}, status=422 if fault else 200)
