"""Adding, editing and removing a project's own charts, from the page of a run whose metrics are offered."""

from functools import partial

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from cohort.accounts.models import Role
from cohort.runs import charts
from cohort.runs.models import ProjectChart, Run
from cohort.web.access import call_service, form_page, redirect_to, run_for
from cohort.web.accounts.views import person
from cohort.web.fields import ServiceForm
from cohort.web.runs.header import Header
from cohort.web.runs.series import reported


class ChartForm(ServiceForm):
    title = forms.CharField(label="Title", max_length=80, help_text="Shown above the chart, once in the project.")
    metrics = forms.MultipleChoiceField(
        label="Metrics",
        widget=forms.CheckboxSelectMultiple,
        help_text=f"A line each, {charts.MOST_LINES} at most. Those that this run reports.",
        error_messages={
            "required": "Choose at least one metric.",
            "invalid_choice": "This run reports no metric %(value)s.",
        },
    )
    log = forms.BooleanField(
        label="Logarithmic axis", required=False, help_text="Values of 0 and below are not drawn on it."
    )

    def __init__(self, *args: object, names: list[str], **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        field = self.fields["metrics"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(name, name) for name in names]


@form_page
def chart_new(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    return _form(request, run_for(request, slug, run_id, at_least=Role.OPERATOR), None)


@form_page
def chart_edit(request: HttpRequest, slug: str, run_id: int, chart_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    return _form(request, run, _chart(run, chart_id))


@require_POST
def chart_remove(request: HttpRequest, slug: str, run_id: int, chart_id: int) -> HttpResponse:
    run = run_for(request, slug, run_id, at_least=Role.OPERATOR)
    chart = _chart(run, chart_id)
    call_service(
        request, charts.chart_remove, f"The chart {chart.title} is removed from every run’s page.", chart=chart
    )
    return redirect_to(request, "run_detail", slug, run.pk)


def _chart(run: Run, pk: int) -> ProjectChart:
    return get_object_or_404(charts.project_charts(run.project).select_related("project"), pk=pk)


def _form(request: HttpRequest, run: Run, chart: ProjectChart | None) -> HttpResponse:
    offered = reported(run)
    names = sorted({*offered, *(chart.metrics if chart else [])})
    first = {"title": chart.title, "metrics": chart.metrics, "log": chart.log} if chart else None
    form = ChartForm(request.POST if request.method == "POST" else None, names=names, initial=first)
    if request.method == "POST" and form.is_valid():
        service = (
            partial(charts.chart_change, chart=chart) if chart else partial(charts.chart_create, project=run.project)
        )
        form.call(service, actor=person(request), **form.cleaned_data)
        if form.is_valid():
            messages.success(request, f"The chart {form.cleaned_data['title']} is on every run’s page that reports it.")
            return redirect(f"{reverse('run_detail', args=[run.project.slug, run.pk])}#chart-group-own")
    context = Header(run).context("", form=form, chart=chart, offered=offered)
    return render(request, "runs/chart_form.html", context, status=form.status)
