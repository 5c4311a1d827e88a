"""The state of a run's monitors (grpo_core.monitors): what its trainer reports as wrong, and what each measures now.

Whether a cause holds is the trainer's word, an event when it begins and another when it is over; figures are computed
here from the stored steps by the same functions.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Q

from cohort.runs.models import EvalResult, Run, RunEvent
from cohort.runs.transitions import current_evaluations, current_steps
from grpo_core.config.run import RunConfig
from grpo_core.monitors.base import BEGAN, OVER, Figure, Monitor, heldout_of
from grpo_core.monitors.history import KEPT, WINDOW, History, StepRow, watched
from grpo_core.monitors.table import MONITORS, title_of
from grpo_core.stats.unscored import scored_share


def causes_of(runs: Collection[int]) -> dict[int, list[RunEvent]]:
    """By run's id, the events with which the causes began that hold now, in the order in which they began; without
    those of steps that a later attempt did again. For a run that ended, those that held at its end."""
    events = RunEvent.objects.filter(run__in=runs, kind__in=(BEGAN, OVER)).order_by("id")
    events = events.select_related("attempt").defer("attempt__manifest", "attempt__outcome")
    causes: dict[int, dict[str, RunEvent]] = defaultdict(dict)
    for event in events:
        end = event.attempt and event.attempt.valid_through
        if end is not None and event.data["step"] > end:
            continue
        own, code = causes[event.run_id], event.data["cause"]
        own.pop(code, None)
        if event.kind == BEGAN:
            own[code] = event
    return defaultdict(list, {run: list(own.values()) for run, own in causes.items()})


def badges_of(runs: Collection[int]) -> dict[int, list[str]]:
    """By run's id, the titles of the causes that hold now, the newest first."""
    causes = causes_of(runs)
    return {run: [title_of(event.data["cause"]) for event in reversed(causes[run])] for run in runs}


@dataclass(frozen=True)
class MonitorState:
    """One monitor of one run."""

    monitor: Monitor
    event: RunEvent | None
    """With which its cause began; None unless it holds."""
    figure: Figure
    metrics: tuple[str, ...]
    """What its curve draws; a name may end in *."""


def monitor_states(run: Run, config: RunConfig) -> list[MonitorState]:
    """Of every monitor, in their order. Three queries."""
    history = history_of(run, config)
    began = {event.data["cause"]: event for event in causes_of([run.pk])[run.pk]}
    return [
        MonitorState(monitor, began.get(monitor.code), monitor.figure(history, config), monitor.drawn(config))
        for monitor in MONITORS
    ]


def history_of(run: Run, config: RunConfig) -> History:
    """What figures are computed from. The intervals of evaluations are left out: only the trainer judges by them."""
    suite = heldout_of(config)
    results = EvalResult.objects.filter(run=run, suite=suite, phase__in=("before", "during")).order_by("step", "id")
    rows = current_evaluations(results).values_list("step", "correct", "problems", "errors")
    shares = ((step, scored_share(correct, problems, errors)) for step, correct, problems, errors in rows)
    scores = [(step, share) for step, share in shares if share is not None]
    evaluated = scores[-1][0] if len(scores) > 1 else 0
    edges = Q(step__lte=WINDOW) | Q(step__gt=run.step - KEPT) | Q(step__gt=evaluated - WINDOW, step__lte=evaluated)
    steps = [
        StepRow(step=step, metrics={name: value for name, value in metrics.items() if watched(name)})
        for step, metrics in current_steps(run).filter(edges).values_list("step", "metrics")
    ]
    names = [f"eval/{suite}/{part}" for part in ("score", "low", "high")]
    return History(
        first=tuple(row for row in steps if row.step <= WINDOW),
        newest=tuple(row for row in steps if row.step > run.step - KEPT),
        before=dict.fromkeys(names, scores[0][1]) if scores else {},
        evaluated=dict.fromkeys(names, scores[-1][1]) if evaluated else {},
        trained=tuple(row for row in steps if evaluated - WINDOW < row.step <= evaluated),
    )
