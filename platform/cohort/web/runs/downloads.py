"""Files of a run: its config, its metrics."""

import csv
import io
import re
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from cohort.runs.models import Run
from cohort.web.access import run_for
from cohort.web.audit.downloads import downloaded
from cohort.web.runs.series import metric_table

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@require_safe
def run_config_yaml(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The config as the trainer got it: `grpo train` takes it."""
    run = run_for(request, slug, run_id)
    text = run.parsed_config.to_yaml()
    downloaded(request, kind="run_config_downloaded", subject=f"run:{run.pk}", project=run.project)
    return _download(text, "application/yaml", f"{_stem(run)}.config.yaml")


@require_safe
def run_metrics_csv(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """One line a step, one column a metric. `?all=1` gives superseded steps too, marked."""
    run = run_for(request, slug, run_id)
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for row in metric_table(run, everything=bool(request.GET.get("all"))):
        writer.writerow([_cell(value) for value in row])
    downloaded(request, kind="run_metrics_downloaded", subject=f"run:{run.pk}", project=run.project)
    return _download(buffer.getvalue(), "text/csv; charset=utf-8", f"{_stem(run)}.metrics.csv")


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it; numbers stay numbers."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _stem(run: Run) -> str:
    """Name for a file: only plain characters, so that it is safe in a header and on any disk."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
    return f"{plain[:60]}-{run.pk}"


def _download(text: str, kind: str, name: str) -> HttpResponse:
    return HttpResponse(text, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
