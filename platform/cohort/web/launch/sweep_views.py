"""The list of sweeps, a sweep's page, and the press that cancels all of it."""

from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.evaluations.across_runs import results_across, shares_across
from cohort.evaluations.selectors import HELDOUT_TITLE
from cohort.launch.sweeps import sweep_cancel as cancel
from cohort.runs.models import Sweep
from cohort.runs.transitions import ENDED
from cohort.web.access import project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.context import listed
from cohort.web.launch.choices import kind_named
from cohort.web.launch.schema import texts_of
from cohort.web.launch.sweep import HOW, sign
from grpo_core.config.evaluation import HELDOUT


@require_safe
def sweep_list(request: HttpRequest, slug: str) -> HttpResponse:
    """The project's sweeps with how far each is, newest first."""
    project = project_for(request, slug)
    sweeps = (
        Sweep.objects.filter(project=project)
        .select_related("created_by")
        .annotate(count=Count("runs"), ended=Count("runs", filter=Q(runs__state__in=ENDED)))
        .order_by("-pk")
    )
    return render(request, "launch/sweeps.html", {"sweeps": listed(request, sweeps, row=_with_values)})


def _with_values(sweeps: list[Sweep]) -> list[tuple[Sweep, list[tuple[str, str]]]]:
    """Each with the values of each of its fields."""
    return [(sweep, [(sign(name), ", ".join(values)) for name, values in sweep.fields.items()]) for sweep in sweeps]


@require_safe
def sweep_detail(request: HttpRequest, slug: str, sweep_id: int) -> HttpResponse:
    """Its runs with what differs, their state and their scores after training."""
    project = project_for(request, slug)
    sweep = get_object_or_404(Sweep.objects.select_related("created_by"), project=project, pk=sweep_id)
    runs = list(sweep.runs.order_by("pk").defer("log_tail", "first_metrics"))
    shares = shares_across(results_across(runs))
    suites = {name: HELDOUT_TITLE if name == HELDOUT else name for name in shares}
    rows = []
    for run in runs:
        texts = texts_of(run.config, kind_named(run.kind))
        values = [(sign(name), texts.get(name, "")) for name in sweep.fields]
        scores = [(title, shares[name].get(run.pk)) for name, title in suites.items()]
        rows.append({"run": run, "values": values, "scores": scores})
    compare = f"{reverse('run_list', args=[slug])}compare/?{urlencode([('run', run.pk) for run in runs])}"
    context = {
        "sweep": sweep,
        "labels": [sign(name) for name in sweep.fields],
        "suites": list(suites.values()),
        "rows": rows,
        "compare": compare,
        "how": HOW["zip" if sweep.zipped else "product"],
        "open": sum(run.state not in ENDED for run in runs),
    }
    return render(request, "launch/sweep.html", context)


@require_POST
def sweep_cancel(request: HttpRequest, slug: str, sweep_id: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    sweep = get_object_or_404(Sweep, project=project, pk=sweep_id)
    count = cancel(sweep=sweep, actor=person(request))
    messages.success(request, f"{count} run{' is' if count == 1 else 's are'} cancelled or asked to stop.")
    return redirect_to(request, "sweep_detail", slug, sweep.pk)
