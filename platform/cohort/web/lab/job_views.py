"""Pages of one job of the lab: how far it is, and what it found. Texts are a model's, so they are shown and never
rendered."""

import json
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.base.formatting import natural
from cohort.catalog.models import BaseModel
from cohort.lab import services
from cohort.lab.models import OPEN, JobKind, JobState, LabJob
from cohort.web.access import STOP_POLLING, project_for, redirect_to, streamed_json
from cohort.web.accounts.views import person
from cohort.web.catalog.selectors import probes_of
from cohort.web.context import position, version_of
from cohort.web.lab import preview_shown
from cohort.web.lab.best_of_n_shown import best_of_n_shown
from cohort.web.lab.estimate_shown import shown, why_waits
from cohort.web.lab.evaluation_views import evaluation_context
from cohort.web.lab.probe_shown import probe_shown
from cohort.web.lab.results import GROUPS_A_PAGE, results_of
from grpo_core.errors import ConfigError

JOB_ROWS = (
    "version__verifier",
    "ground_truth__verifier",
    "dataset",
    "base_model",
    "created_by",
    "node",
    "probe",
    "rescore",
)
"""Rows that the pages of a job show too."""


@require_safe
def lab_job(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    job = job_of(project_for(request, slug), job_id)
    context = _frame(job)
    if job.conversation_id is not None:
        return redirect("chat_detail", slug, job.conversation_id)
    if job.kind == JobKind.RESCORE:
        return redirect("run_rescore", slug, job.rescore.run_id, job.rescore.pk)
    if job.state != JobState.DONE:
        return render(request, "lab/job.html", context)
    if job.kind == JobKind.EVALUATE:
        return render(request, "lab/job_evaluation.html", context | evaluation_context(request, job))
    if job.kind == JobKind.PROBE:
        earlier = [probe for probe in probes_of(job.version) if probe.job_id != job.pk] if job.version else []
        context |= {"report": probe_shown(job.result or {}), "probes": earlier}
        return render(request, "lab/job_probe.html", context)
    if job.kind == JobKind.ESTIMATE:
        return render(request, "lab/job_estimate.html", context | {"estimate": shown(job, job.config_digest)})
    if job.kind == JobKind.PREVIEW:
        preview = preview_shown.shown(job, job.config_digest)
        return render(request, "lab/job_preview.html", context | {"preview": preview})
    if job.kind == JobKind.BEST_OF_N:
        return render(request, "lab/job_best_of_n.html", context | {"best_of": best_of_n_shown(job)})
    if job.kind == JobKind.DOCTOR and job.base_model is not None:
        return redirect("base_model_detail", slug, job.base_model.pk)
    results = results_of(job)
    page = min(max(natural(request.GET.get("page")) or 1, 1), max(1, -(-len(results.groups) // GROUPS_A_PAGE)))
    context |= {"results": results, "page": results.page(page)}
    return render(request, "lab/job_result.html", context)


@require_safe
def lab_job_live(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    """The head of a job that is not done: 204 while nothing changed since `v`. Once it has ended, the page reloads
    with its result."""
    job = job_of(project_for(request, slug), job_id, light=True)
    if job.state not in OPEN:
        return HttpResponse(status=STOP_POLLING, headers={"HX-Refresh": "true"})
    context = _frame(job)
    if request.GET.get("v") == context["seen"]:
        return HttpResponse(status=204)
    return render(request, "lab/_job_head.html", context)


@require_POST
def lab_job_cancel(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    job = job_of(project_for(request, slug, at_least=Role.OPERATOR), job_id, light=True)
    try:
        services.job_cancel(job=job, actor=person(request))
    except services.JobOver:
        messages.info(request, "Nothing was done: it had ended already.")
    return redirect_to(request, "lab_job", slug, job_id)


@require_safe
def lab_job_result(request: HttpRequest, slug: str, job_id: int) -> HttpResponseBase:
    """What the worker reported, as JSON."""
    job = job_of(project_for(request, slug), job_id)
    if job.state != JobState.DONE:
        raise Http404
    return streamed_json(job.result, f"lab-{job.kind}-{job.pk}.json")


@require_safe
def lab_job_group(request: HttpRequest, slug: str, job_id: int, at: int) -> HttpResponse:
    """One group's samples, side by side."""
    job = job_of(project_for(request, slug), job_id)
    if job.state != JobState.DONE or job.kind not in (JobKind.TRY, JobKind.SAMPLE):
        raise Http404
    results = results_of(job)
    groups = {group.index: group for group in results.groups}
    if at not in groups:
        raise Http404
    context = _frame(job) | position(list(groups), at) | {"results": results, "group": groups[at]}
    return render(request, "lab/group.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def base_model_doctor(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Have a worker look at the model (POST); the panel of what it reports (GET), 286 once it has ended."""
    posted = request.method == "POST"
    project = project_for(request, slug, at_least=Role.OPERATOR if posted else Role.VIEWER)
    model = get_object_or_404(BaseModel.objects.select_related("project"), project=project, pk=pk)
    if posted:
        try:
            services.doctor_request(base_model=model, actor=person(request))
        except ConfigError as error:
            messages.error(request, str(error))
        return redirect("base_model_detail", slug, pk)
    doctor = preview_shown.doctor_shown(model)
    status = 200 if doctor and doctor["live"] else STOP_POLLING
    return render(request, "catalog/_doctor.html", {"model": model, "doctor": doctor}, status=status)


def job_of(project: Project, pk: int, *, light: bool = False) -> LabJob:
    """`light`: without its result, for what is polled."""
    jobs = LabJob.objects.select_related("project", *JOB_ROWS)
    return get_object_or_404(jobs.defer("result", "options") if light else jobs, project=project, pk=pk)


def _frame(job: LabJob) -> dict[str, Any]:
    progress: dict[str, Any] = job.progress or {}
    why = why_waits(job)
    return {
        "job": job,
        "progress": progress,
        "live": job.state in OPEN,
        "seen": version_of((job.state, job.fence, progress.get("done"), progress.get("phase"), job.cancel_asked, why)),
        "why": why,
        "ran": timezone.now() - job.started_at if job.started_at else None,
        "spec_json": json.dumps(job.spec),
        "components": job.spec.get("components", []),
    }
