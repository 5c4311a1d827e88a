"""The queue: who waits for what and why, who runs where; and what the project may use at most.

Runs of every project share one queue, so all are listed. Of another project's only position, needs and age are shown.
"""

from typing import Any

from django import forms
from django.contrib import messages
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from cohort.accounts.invitations import people_in
from cohort.accounts.models import Project, Role
from cohort.accounts.quotas import PROJECT_QUOTAS, quota, server_quota
from cohort.base.formatting import bytes_, num
from cohort.catalog.services import uploaded_bytes
from cohort.lab.models import OPEN, LabJob
from cohort.runs.limits import WINDOW, hours_free_at, project_limits_set, project_quotas_set, project_use
from cohort.runs.models import Attempt, AttemptState, Priority, RunState
from cohort.runs.waiting import waiting_rows
from cohort.web.access import form_page, project_for, require_manager
from cohort.web.accounts.views import person
from cohort.web.context import POLLED, listed, query_without, render_polled, version_of


class LimitsForm(forms.Form):
    """What a project may use at most, as an admin types it. Empty is no limit."""

    max_running = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=32767,
        label="Runs at once",
        help_text="Most runs of this project on workers at the same time; others wait in the queue. Empty: no limit.",
    )
    gpu_hours_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=2147483647,
        label="GPU-hours in 30 days",
        help_text="Counted from claim to end of each attempt, times its GPUs; a run without a GPU counts as one. "
        "Nothing that runs is stopped for it: no new run begins until the last 30 days hold less. Empty: no limit.",
    )


class QuotasForm(forms.Form):
    """What the project may have at most, by who manages the server. Empty is what the server's settings say."""

    max_members = forms.IntegerField(required=False, min_value=1, max_value=2147483647, label="Members")
    max_upload_bytes = forms.IntegerField(
        required=False, min_value=1, max_value=2**63 - 1, label="Bytes of datasets and suites"
    )
    max_waiting_runs = forms.IntegerField(required=False, min_value=1, max_value=2147483647, label="Runs in the queue")
    max_open_jobs = forms.IntegerField(required=False, min_value=1, max_value=2147483647, label="Open lab jobs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, what in PROJECT_QUOTAS.items():
            field = self.fields[name]
            field.help_text = f"Most {what}. Empty: the server's own, {server_quota(name):,}."


class QueuePage:
    def __init__(self, request: HttpRequest, project: Project) -> None:
        running = Attempt.objects.filter(state=AttemptState.RUNNING).select_related("run", "node")
        running = running.defer("manifest", "outcome", "node__info", "run__config", "run__log_tail")
        self.waiting = listed(request, waiting_rows(), name="waiting")
        self.running = listed(request, running.order_by("claimed_at"), name="running")
        """Of every project, longest first."""
        self.use = project_use(project)

    @property
    def version(self) -> str:
        """Changes when anything but the ages has changed."""
        parts = [
            *(self.waiting.total, self.running.total),
            *((row.position, row.run.pk, row.run.priority, row.needs, row.why) for row in self.waiting),
            *(
                (attempt.pk, attempt.run.state, attempt.run.step, attempt.run.desired, attempt.run.stalled_at)
                for attempt in self.running
            ),
            *(self.use.running, round(self.use.gpu_hours, 1), self.use.max_running, self.use.gpu_hours_limit),
        ]
        return version_of(parts)


@require_safe
def queue(request: HttpRequest, slug: str) -> HttpResponse:
    """With `v` the tables alone, for a poll."""
    project = project_for(request, slug)
    page, same_part = QueuePage(request, project), query_without(request, *POLLED)
    context = {"page": page, "priorities": Priority, "window": WINDOW.days, "same_part": same_part}
    return render_polled(request, "runs/queue.html", "runs/_queue.html", context)


def project_has(project: Project) -> dict[str, int]:
    """How much of each quota is used."""
    return {
        "max_members": people_in(project),
        "max_upload_bytes": uploaded_bytes(project),
        "max_waiting_runs": project.runs.filter(state=RunState.QUEUED).count(),
        "max_open_jobs": LabJob.objects.filter(project=project, state__in=OPEN).count(),
    }


@form_page
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    """Every member sees what the project may use; an admin sets it."""
    project = project_for(request, slug, at_least=Role.ADMIN if request.method == "POST" else Role.VIEWER)
    sent = request.POST or None
    of_quotas = sent is not None and "quotas" in sent
    if of_quotas:
        require_manager(request, "Limits of the server")
    quotas = QuotasForm(sent if of_quotas else None, initial=model_to_dict(project, fields=QuotasForm.base_fields))
    if of_quotas and quotas.is_valid():
        project_quotas_set(project=project, actor=person(request), quotas=quotas.cleaned_data)
        messages.success(request, f"The server's limits for {project.name} are set. What is there already stays.")
        return redirect("project_limits", slug)
    form = LimitsForm(None if of_quotas else sent, initial=model_to_dict(project, fields=LimitsForm.base_fields))
    if form.is_bound and form.is_valid():
        most, hours = form.cleaned_data["max_running"], form.cleaned_data["gpu_hours_limit"]
        project_limits_set(project=project, actor=person(request), max_running=most, gpu_hours=hours)
        messages.success(request, f"The limits of {project.name} are set. What runs now continues.")
        return redirect("queue", slug)
    use = project_use(project)
    free_at = hours_free_at(project, now=timezone.now()) if use.no_hours else None
    context = {
        "form": form,
        "quotas": quotas,
        "kept": [
            (PROJECT_QUOTAS[name], *map(bytes_ if name == "max_upload_bytes" else num, (used, quota(project, name))))
            for name, used in project_has(project).items()
        ],
        "use": use,
        "free_at": free_at,
        "window": WINDOW.days,
    }
    return render(request, "runs/limits.html", context, status=422 if form.errors or quotas.errors else 200)
