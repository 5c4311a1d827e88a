"""The numbers of a run's steps, for charts and for download.

Only current steps are read, unless all are requested. A long run is read from its buckets, so that a chart costs the
same however long the run is.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe
from pydantic_core import from_json, to_json

from cohort.base.formatting import natural
from cohort.ingest.buckets import FACTOR, WIDTHS, Numbers, first_of, numbers
from cohort.runs.models import Attempt, Bucket, Run, StepMetric
from cohort.runs.transitions import current_rows, current_steps
from cohort.web.access import file_response, run_for, streamed
from cohort.web.audit.selectors import csv_line, downloaded
from cohort.web.context import prepared, version_of
from cohort.web.runs.charts import LAST, Piece, series, width_of

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
    if run.fence < 2:
        return []
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


def pieces(run: Run, *, after: int = 0, through: int | None = None) -> tuple[int, list[Piece]]:
    """(the step beyond which these are, the current steps beyond it in order): each step by itself, or in the
    narrowest buckets that are few enough. `through`: the last step of a range; without it, when more steps than that
    came after `after`, the whole run is returned. Where buckets are read, the range begins with its first one.
    What is superseded counts for nothing: a run that went back to an early step is a short one again."""
    newest = run.step if through is None else min(run.step, through)
    if through is None and newest - after > MOST_ROWS:
        after = 0
    if newest <= after + MOST_ROWS:
        steps = current_steps(run).filter(step__gt=after, step__lte=newest)
        return after, _single(steps)
    width = next((width for width in WIDTHS if newest - after <= MOST_ROWS * width), WIDTHS[-1])
    after = first_of(after + 1, width) - 1
    within_range = [
        segment for segment in segments(run) if segment.first <= newest and (segment.last or newest) > after
    ]
    ends = {segment.attempt.pk: min(segment.last or newest, newest) for segment in within_range}
    uncovered = {segment.attempt.pk: max(segment.first, after + 1) for segment in within_range}
    parts: list[Piece] = []
    while width > 1:
        condition = Q(pk__in=[])
        for attempt, begin in uncovered.items():
            # The bucket that the attempt began in may begin before it; of the attempt it holds only its own steps.
            first, last = first_of(begin, width), ends[attempt] - width + 1
            condition |= Q(attempt=attempt, first_step__gte=first, first_step__lte=last)
        buckets = Bucket.objects.filter(condition, width=width).order_by("first_step")
        for attempt, begin, text in buckets.values_list("attempt_id", "first_step", _text("metrics")):
            bucket: Numbers = from_json(text)
            values = {name: four[LAST] for name, four in bucket.items()}
            parts.append(Piece(max(begin, uncovered[attempt]), begin + width - 1, values, bucket))
            uncovered[attempt] = begin + width
        width //= FACTOR
    condition = Q(pk__in=[])
    for attempt, first in uncovered.items():
        condition |= Q(attempt=attempt, step__gte=first, step__lte=ends[attempt])
    parts += _single(current_rows(StepMetric.objects.filter(condition, run=run)))
    return after, sorted(parts, key=lambda piece: piece.first)


def _single(steps: QuerySet[StepMetric]) -> list[Piece]:
    rows = steps.values_list("step", _text("metrics"), _text("seconds"), "at")
    return [
        Piece(step, step, numbers(from_json(metrics), from_json(spent)), at=at.timestamp())
        for step, metrics, spent, at in rows
    ]


def _text(column: str) -> Cast:
    """The column's JSON as it is, for a parser that takes a fourth of the time of Django's."""
    return Cast(column, TextField())


def series_json(run: Run, *, after: int = 0, through: int | None = None) -> str:
    """What the charts draw of the current steps beyond `after`: `charts.series`, `at` as Unix times, and what a page
    needs to ask for more."""
    first, read = pieces(run, after=after, through=through)
    drawn = series(read)
    if untimed := [step for step, at in zip(drawn["step"], drawn["at"], strict=True) if at is None]:
        times = dict(current_steps(run).filter(step__in=untimed).values_list("step", "at"))
        drawn["at"] = [
            times[step].timestamp() if at is None else at for step, at in zip(drawn["step"], drawn["at"], strict=True)
        ]
    shown = {
        **drawn,
        "started": run.started_at.timestamp() if run.started_at else None,
        "steps": read[-1].last - first if read else 0,
        "last": read[-1].last if read else None,
        "after": first,
        "epoch": epoch(run),
        "width": width_of(read),
        "seams": [asdict(seam) for seam in seams(run)],
    }
    return to_json(shown).decode()


def whole_series(run: Run) -> str:
    """`series_json` of all, kept for those who want the same."""
    return prepared(version_of(("series", run.pk, epoch(run), run.step)), lambda: series_json(run))


def reported(run: Run) -> list[str]:
    """Names of the metrics that any current step has, as the charts have them."""
    if not run.step:
        return []

    def names() -> str:
        return json.dumps(sorted(json.loads(whole_series(run))["metrics"]))

    name = version_of(("reported", run.pk, epoch(run), run.step))
    listed: list[str] = json.loads(prepared(name, names))
    return listed


def metric_table(
    run: Run, *, everything: bool = False, only: Collection[str] = (), first: int = 0, last: int | None = None
) -> Iterator[list[Any]]:
    """Header and rows of every metric that any step reported, or of those in `only`; absent values are empty. With
    `everything` superseded rows too, in the order in which they were recorded, and a column that marks them. Of the
    steps from `first` to `last`."""
    rows = StepMetric.objects.filter(run=run, step__gte=first)
    rows = rows if last is None else rows.filter(step__lte=last)
    rows = rows.order_by("attempt__fence", "step") if everything else current_rows(rows).order_by("step")
    names, spans = _keys(run, "metrics"), _keys(run, "seconds")
    if only:
        names = [name for name in names if name in only]
        spans = [name for name in spans if f"seconds/{name}" in only]
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
    """One line a step, one column a metric. `?all=1` gives superseded steps too, marked; `metric`, as often as needed,
    names the columns, `from` and `to` the steps."""
    run = run_for(request, slug, run_id)
    downloaded(request, kind="run_metrics_downloaded", subject=f"run:{run.pk}", project=run.project)
    table = metric_table(
        run,
        everything=bool(request.GET.get("all")),
        only=request.GET.getlist("metric"),
        first=natural(request.GET.get("from")) or 0,
        last=natural(request.GET.get("to")),
    )
    lines = map(csv_line, table)
    return streamed(lines, "text/csv; charset=utf-8", f"{file_stem(run)}.metrics.csv")


def file_stem(run: Run) -> str:
    """Name for a file: only plain characters, so that it is safe in a header and on any disk."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
    return f"{plain[:60]}-{run.pk}"
