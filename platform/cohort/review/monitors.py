"""Which samples a monitor flagged: those of the steps at which its cause held by its trainer's word, and of them those
that it is about."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet

from cohort.review.facets import ERROR, FINISH
from cohort.review.models import Sample
from cohort.runs.models import Run, RunEvent
from grpo_core.monitors.base import BEGAN, OVER
from grpo_core.monitors.table import BY_CODE, MONITORS

MONITOR_WORDS = {monitor.code: f"monitor: {monitor.title}" for monitor in MONITORS}
Spans = Mapping[str, list[tuple[int, int | None]]]
"""Cause → (first, last) step at which it held, in order; a last of None: it still does."""


def monitor_spans(run: Run) -> Spans:
    """By the events of the run's trainers, without those of steps that a later attempt did again. One query."""
    events = RunEvent.objects.filter(run=run, kind__in=(BEGAN, OVER)).order_by("pk")
    return spans_of(events.values_list("kind", "data", "attempt__valid_through"))


def spans_of(events: Iterable[tuple[str, Any, int | None]]) -> Spans:
    """`events`: (kind, data, last step of the attempt that is current, None for all of them) in order."""
    spans: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for kind, data, end in events:
        own, step = spans[data["cause"]], data["step"]
        holds = bool(own) and own[-1][1] is None
        if end is not None and step > end:
            continue
        if kind == BEGAN and not holds:
            own.append((step, None))
        elif kind == OVER and holds:
            own[-1] = (own[-1][0], data["last"])
    return {code: own for code, own in spans.items() if own}


def flagged_by(run: Run, code: str) -> Q:
    """Samples that the monitor flagged; none where it reported nothing."""
    return _condition(code, monitor_spans(run).get(code, []))


def monitor_counts(samples: QuerySet[Sample], run: Run) -> dict[str, int]:
    """Monitor that reported something → how many of the samples it flagged, in the order of monitors. Two queries at
    most."""
    spans = monitor_spans(run)
    counted = {code: Count("pk", filter=_condition(code, spans[code])) for code in MONITOR_WORDS if code in spans}
    return samples.order_by().aggregate(**counted) if counted else {}


def _condition(code: str, spans: list[tuple[int, int | None]]) -> Q:
    steps = Q(pk__in=[])
    for first, last in spans:
        steps |= Q(step__gte=first) if last is None else Q(step__range=(first, last))
    about = BY_CODE[code].samples
    if about == "errors":
        return steps & ~ERROR.has("")
    return steps & FINISH.has("length") if about == "truncated" else steps
