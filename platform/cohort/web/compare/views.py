"""Several runs of a project side by side: the page, its curves as JSON or CSV, and one suite at a time."""

import json
import re
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from cohort.base.storable import storable
from cohort.evaluations.across_runs import results_across, suite_across
from cohort.web.access import file_response, project_for, streamed
from cohort.web.audit.selectors import csv_line, downloaded
from cohort.web.compare import curves
from cohort.web.compare.chosen import MOST_RUNS, Choice, search, suggestions
from cohort.web.compare.curves import AXES, HELD_OUT, Axis, default_metrics, metrics_of
from cohort.web.compare.settings_table import SettingsTable, settings_table
from cohort.web.compare.summary import csv_rows, suite_title, summary, to_markdown
from cohort.web.runs.chart_list import GROUPS

LONGEST = 200
"""Characters of a metric's name."""
_TITLES = {chart.metrics[0]: chart.title for group in GROUPS for chart in group.charts if len(chart.lines) == 1} | {
    "frac_informative": "Groups with signal"
}
_COMPONENT = re.compile(r"rewards/(.+)/mean")


@dataclass(frozen=True)
class Panel:
    metric: str
    title: str


@require_safe
def run_compare(request: HttpRequest, slug: str) -> HttpResponseBase:
    """`run` once for each run, `baseline`, `hide`, `metric`; `add`: text that names further runs, with `all` every run
    that it fits; `format` csv or md gives the table as a file."""
    project = project_for(request, slug)
    choice = Choice(project, request.GET)
    if choice.settled is not None:
        return HttpResponseRedirect(f"{reverse('run_compare', args=[slug])}?{choice.settled}")
    hits = search(choice, request.GET["add"]) if request.GET.get("add", "").strip() else None
    if hits is not None and (hits.total == 1 or (request.GET.get("all") == "1" and hits.matches)):
        return HttpResponseRedirect(f"{reverse('run_compare', args=[slug])}?{choice.with_runs(hits.matches)}")
    context: dict[str, Any] = {
        "choice": choice,
        "hits": hits,
        "hit_links": [(run, choice.with_runs([run])) for run in hits.matches[:20]] if hits else [],
        "suggested": [(run, choice.with_runs([run])) for run in suggestions(choice)],
        "limit": MOST_RUNS,
    }
    if choice.baseline is not None:
        settings = settings_table(choice.runs, choice.baseline)
        results = results_across(choice.runs)
        made = summary(choice, settings, results)
        if (wanted := request.GET.get("format", "")) in ("csv", "md"):
            _logged(request, choice, form=wanted)
            if wanted == "md":
                return file_response(to_markdown(made), "text/markdown; charset=utf-8", "runs-compared.md")
            return streamed(map(csv_line, csv_rows(made)), "text/csv; charset=utf-8", "runs-compared.csv")
        recorded = metrics_of(choice.runs)
        named = list(dict.fromkeys(storable(name) for name in request.GET.getlist("metric")))
        metrics = [name for name in named if name in recorded]
        context |= {
            "settings": settings,
            "chosen": _legend(choice, settings),
            "summary": made,
            "markdown": to_markdown(made),
            "recorded": recorded,
            "panels": [_panel(name) for name in metrics or default_metrics(choice.runs, recorded)],
            "unknown_metrics": [name for name in named if name not in recorded],
            "axes": AXES,
            "suites": [(name, suite_title(name)) for name in results],
        }
    return render(request, "compare/page.html", context)


def _legend(choice: Choice, settings: SettingsTable) -> list[dict[str, Any]]:
    """Each run with what its curves are grouped by: the first of the runs that differ from it in the seed alone."""
    return [{"one": chosen, "group": settings.seeds.get(chosen.run.pk)} for chosen in choice.chosen]


def _panel(metric: str) -> Panel:
    if component := _COMPONENT.fullmatch(metric):
        return Panel(metric, f"Reward component {component[1]}")
    if suite := HELD_OUT.fullmatch(metric):
        return Panel(metric, f"{suite_title(suite[1])} while training")
    return Panel(metric, _TITLES.get(metric, metric))


def _logged(request: HttpRequest, choice: Choice, **data: Any) -> None:
    pks = [run.pk for run in choice.runs]
    data = {"runs": pks, **data}
    downloaded(request, kind="runs_compared_downloaded", subject=f"run:{pks[0]}", project=choice.project, data=data)


@require_safe
def run_compare_series(request: HttpRequest, slug: str) -> HttpResponseBase:
    """One `metric` of the runs, by the axis `x`; `format` csv gives a file."""
    choice = Choice(project_for(request, slug), request.GET)
    metric = storable(request.GET.get("metric", ""))[:LONGEST]
    wanted = request.GET.get("x", "step")
    axis: Axis = wanted if wanted in AXES else "step"
    drawn = curves.curves(choice.runs, metric, axis=axis)
    if request.GET.get("format") == "csv" and choice.runs:
        _logged(request, choice, form="csv", metric=metric)
        lines = map(csv_line, curves.csv_rows(choice.runs, metric, drawn))
        return streamed(lines, "text/csv; charset=utf-8", "curves-compared.csv")
    return HttpResponse(json.dumps(drawn.to_json()), content_type="application/json")


@require_safe
def run_compare_suite(request: HttpRequest, slug: str) -> HttpResponse:
    """The part of the page about one `suite`: it reads every item, which the page itself does not."""
    choice = Choice(project_for(request, slug), request.GET)
    name = request.GET.get("suite", "")
    results = results_across(choice.runs).get(name)
    context: dict[str, Any] = {"choice": choice, "suite": name}
    if results is not None and choice.baseline is not None:
        across = suite_across(choice.runs, choice.baseline, name, results)
        styles = {chosen.run.pk: chosen for chosen in choice.chosen}
        context |= {"across": across, "rows": [(styles[row.run.pk], row) for row in across.rows]}
    return render(request, "compare/_suite.html", context)
