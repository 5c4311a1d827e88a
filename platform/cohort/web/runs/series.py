"""The numbers of a run's steps, for charts and for download.

Only current steps are read, unless all are requested. A long run is read from its buckets, so that a chart costs the
same however long the run is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from cohort.ingest.buckets import FACTOR, WIDTHS, first_of, numbers, point
from cohort.runs.models import Attempt, Bucket, Run, StepMetric
from cohort.runs.transitions import current_rows, current_steps
from cohort.web.access import file_response, run_for, streamed
from cohort.web.audit.selectors import csv_line, downloaded
from cohort.web.runs.charts import Piece

MOST_ROWS = 2000
"""Most rows of one width that charts are made from; a longer run is read from wider buckets."""


@dataclass(frozen=True)
class Segment:
    """The part of the current series that one attempt recorded."""

    attempt: Attempt
    first: int
    last: int | None
    """None for the attempt that may still add steps."""


@dataclass(frozen=True)
class Seam:
    """Where the series resumes from an earlier attempt's checkpoint."""

    step: int
    attempt: int
    why: str


def segments(run: Run) -> list[Segment]:
    """In the order of their steps. An attempt whose steps are all superseded is left out."""
    kept = []
    for attempt in run.attempts.only("run", "fence", "resumed_step", "valid_through").order_by("fence"):
        first, last = (attempt.resumed_step or 0) + 1, attempt.valid_through
        if last is None or last >= first:
            kept.append(Segment(attempt, first, last))
    return kept


def seams(run: Run) -> list[Seam]:
    """One for each current attempt that resumed from a checkpoint, with how the attempt before it ended."""
    ends = {attempt.fence: attempt for attempt in run.attempts.only("run", "fence", "state", "end_reason")}
    resumed = []
    for segment in segments(run):
        fence, step = segment.attempt.fence, segment.attempt.resumed_step
        if step is not None:
            before = ends[fence - 1]
            reason = f": {before.end_reason}" if before.end_reason else ""
            resumed.append(Seam(step, fence, f"attempt {before.fence} {before.get_state_display().lower()}{reason}"))
    return resumed


def epoch(run: Run) -> str:
    """Changes whenever a later attempt supersedes steps that a chart may have drawn."""
    if run.fence < 2:
        return ""
    ends = run.attempts.exclude(valid_through=None).order_by("fence").values_list("fence", "valid_through")
    return ",".join(f"{fence}:{through}" for fence, through in ends)


def pieces(run: Run, *, after: int = 0) -> tuple[int, list[Piece]]:
    """(the step beyond which these are, the current steps beyond it in order): each step by itself, or in the
    narrowest buckets that are few enough. When more steps than that came after `after`, the whole run is returned.
    What is superseded counts for nothing: a run that went back to an early step is a short one again."""
    newest = run.step
    if newest - after > MOST_ROWS:
        after = 0
    if newest <= after + MOST_ROWS:
        rows = current_steps(run).filter(step__gt=after).values_list("step", "metrics", "seconds")
        return after, [Piece(step, step, point(numbers(metrics, seconds))) for step, metrics, seconds in rows]
    standing_parts = segments(run)
    uncovered = {segment.attempt.pk: segment.first for segment in standing_parts}
    width = next((width for width in WIDTHS if newest <= MOST_ROWS * width), WIDTHS[-1])
    parts: list[Piece] = []
    while width > 1:
        condition = Q(pk__in=[])
        for segment in standing_parts:
            attempt = segment.attempt.pk
            # The bucket that the attempt began in may begin before it; of the attempt it holds only its own steps.
            within = Q(attempt=attempt, first_step__gte=first_of(uncovered[attempt], width))
            if segment.last is not None:
                within &= Q(first_step__lte=segment.last - width + 1)
            condition |= within
        buckets = Bucket.objects.filter(condition, width=width).order_by("first_step")
        for attempt, begin, metrics in buckets.values_list("attempt_id", "first_step", "metrics"):
            parts.append(Piece(max(begin, uncovered[attempt]), begin + width - 1, metrics))
            uncovered[attempt] = begin + width
        width //= FACTOR
    condition = Q(pk__in=[])
    for attempt, first in uncovered.items():
        condition |= Q(attempt=attempt, step__gte=first)
    rest = current_rows(StepMetric.objects.filter(condition, run=run)).values_list("step", "metrics", "seconds")
    parts += [Piece(step, step, point(numbers(metrics, seconds))) for step, metrics, seconds in rest]
    return 0, sorted(parts, key=lambda piece: piece.first)


def metric_table(run: Run, *, everything: bool = False) -> Iterator[list[Any]]:
    """Header and rows of every metric that any step reported; absent values are empty. With `everything` superseded
    rows too, in the order in which they were recorded, and a column that marks them."""
    rows = StepMetric.objects.filter(run=run)
    rows = rows.order_by("attempt__fence", "step") if everything else current_rows(rows).order_by("step")
    names, spans = _keys(run, "metrics"), _keys(run, "seconds")
    marks = ["attempt", "superseded"] if everything else ["attempt"]
    yield ["step", "at", *marks, *names, *(f"seconds/{name}" for name in spans)]
    recorded = rows.values_list("step", "at", "attempt__fence", "attempt__valid_through", "metrics", "seconds")
    for step, at, fence, through, metrics, seconds in recorded.iterator(chunk_size=500):
        cells: list[Any] = [step, at.isoformat(), fence]
        if everything:
            cells.append("superseded" if through is not None and step > through else "")
        yield [*cells, *(metrics.get(name, "") for name in names), *(seconds.get(name, "") for name in spans)]


def _keys(run: Run, column: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT jsonb_object_keys({column}) FROM runs_stepmetric WHERE run_id = %s", [run.pk])
        return sorted(name for (name,) in cursor.fetchall())


@require_safe
def run_config_yaml(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """The config as the trainer got it: `grpo train` takes it."""
    run = run_for(request, slug, run_id)
    text = run.parsed_config.to_yaml()
    downloaded(request, kind="run_config_downloaded", subject=f"run:{run.pk}", project=run.project)
    return file_response(text, "application/yaml", f"{file_stem(run)}.config.yaml")


@require_safe
def run_metrics_csv(request: HttpRequest, slug: str, run_id: int) -> HttpResponseBase:
    """One line a step, one column a metric. `?all=1` gives superseded steps too, marked."""
    run = run_for(request, slug, run_id)
    downloaded(request, kind="run_metrics_downloaded", subject=f"run:{run.pk}", project=run.project)
    lines = map(csv_line, metric_table(run, everything=bool(request.GET.get("all"))))
    return streamed(lines, "text/csv; charset=utf-8", f"{file_stem(run)}.metrics.csv")


def file_stem(run: Run) -> str:
    """Name for a file: only plain characters, so that it is safe in a header and on any disk."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
    return f"{plain[:60]}-{run.pk}"
