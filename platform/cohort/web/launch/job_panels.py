"""Panels of the run form that follow a worker's job: a probe of the reward, a measurement, a preview of the prompts."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.lab.models import OPEN, JobKind, LabJob
from cohort.web.access import STOP_POLLING, project_for
from cohort.web.lab import estimate_shown, preview_shown


@require_safe
def run_probe(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    """The progress of a reward's probe. Once it has ended, the form checks itself anew."""
    job = _job(request, slug, job_id, JobKind.PROBE)
    response = render(request, "launch/_probe.html", {"probe": preview_shown.state_shown(job)})
    if job.state not in OPEN:
        response.status_code = STOP_POLLING
        response.headers["HX-Trigger"] = "previewed"
    return response


@require_safe
def run_estimate(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    """The panel of one measurement; `digest` is of the form's config. 286 once it has ended: the form checks itself
    anew, and shows its time."""
    job = _job(request, slug, job_id, JobKind.ESTIMATE)
    estimate = estimate_shown.shown(job, request.GET.get("digest", ""))
    context = {"estimate": estimate, "asks": True}
    response = render(request, "launch/_estimate.html", context)
    if not estimate["live"]:
        response.status_code = STOP_POLLING
        response.headers["HX-Trigger"] = "previewed"
    return response


@require_safe
def run_preview(request: HttpRequest, slug: str, job_id: int) -> HttpResponse:
    """The panel of one preview, likewise. Once it has ended, the form checks itself anew."""
    preview = preview_shown.shown(_job(request, slug, job_id, JobKind.PREVIEW), request.GET.get("digest", ""))
    response = render(request, "launch/_preview.html", {"preview": preview})
    if not preview["live"]:
        response.status_code = STOP_POLLING
        response.headers["HX-Trigger"] = "previewed"
    return response


def _job(request: HttpRequest, slug: str, job_id: int, kind: JobKind) -> LabJob:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    return get_object_or_404(LabJob.objects.select_related("node"), project=project, kind=kind, pk=job_id)
