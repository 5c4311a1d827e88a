"""One metric of many runs, as the curves of a comparison draw it: few points a run, and no spike lost.

Short runs are read step by step, long ones from their buckets (`cohort.ingest.buckets`). The number of queries follows
from the widths that are read, never from the number of runs. All runs are cut into the same stretches of steps, so that
runs which differ in their seed alone can be averaged stretch by stretch.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import connection

from cohort.ingest.buckets import FACTOR, WIDTHS, first_of
from cohort.runs.models import Attempt, Run
from grpo_core.config.kinds import reward_of, samples_per_step

Axis = Literal["step", "time", "tokens", "samples"]
AXES: dict[Axis, str] = {"step": "step", "time": "hours", "tokens": "tokens", "samples": "completions"}
"""Horizontal axis → its unit."""
TOKENS = "num_tokens"
"""Metric that holds all tokens so far."""
MOST_ROWS = 20_000
"""Rows read for one metric of all runs; more are read from wider buckets."""
MOST_POINTS = 30_000
"""Points drawn of all runs together."""
POINTS, FEWEST_POINTS = 900, 150
"""Most points of one run, with few runs and with many."""
DIGITS = 6
"""Significant digits of a number that is drawn; files have all."""
_END = 2**31 - 1

PHASES = tuple(f"seconds/{name}" for name in ("sample", "reward", "logprobs", "update", "checkpoint", "waiting"))
DEFAULTS = ("reward", "", "frac_informative", "kl", "completions/mean_length")
"""Metrics drawn unless the address names others; the empty one stands for the success component."""
HELD_OUT = re.compile(r"eval/(.+)/score")
"""Metrics of evaluations while training."""


@dataclass(frozen=True)
class Curve:
    """Of one run, stretch by stretch; all tuples have one length."""

    step: tuple[int, ...]
    """Last step of each stretch that has the metric."""
    value: tuple[float, ...]
    """At that step."""
    low: tuple[float, ...]
    """Lowest of the stretch."""
    high: tuple[float, ...]
    x: tuple[float | None, ...]
    """Position on the axis; None where that was not recorded."""


@dataclass(frozen=True)
class Curves:
    width: int
    """Steps of a stretch; 1 where each step is drawn."""
    by_run: dict[int, Curve]

    def to_json(self) -> dict[str, Any]:
        """`low` and `high` only where they can differ from `value`, `x` only where it is not the step."""
        runs: dict[int, dict[str, Any]] = {}
        for pk, curve in self.by_run.items():
            runs[pk] = {"step": curve.step, "value": _short(curve.value)}
            if self.width > 1:
                runs[pk] |= {"low": _short(curve.low), "high": _short(curve.high)}
            if curve.x != curve.step:
                runs[pk] |= {"x": curve.x}
        return {"width": self.width, "runs": runs}


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def metrics_of(runs: Sequence[Run]) -> list[str]:
    """Names that any run recorded in its first or newest step, and the phases of a step."""
    names = {name for run in runs for name in (*run.first_metrics, *run.latest_metrics)}
    return sorted(names) + (list(PHASES) if names else [])


def default_metrics(runs: Sequence[Run], recorded: Collection[str]) -> list[str]:
    """Of those recorded: reward, success component, held-out where it is measured in training, signal, KL, length."""
    rewards = (reward_of(run.parsed_config) for run in runs)
    success = Counter(f"rewards/{reward.success_component}/mean" for reward in rewards if reward is not None)
    usual = success.most_common(1)[0][0] if success else ""
    wanted = [name or usual for name in DEFAULTS]
    scores = sorted(name for name in recorded if HELD_OUT.fullmatch(name))
    wanted[2:2] = [name for name in ("eval/heldout/score", *scores) if name in scores][:1]
    return [name for name in wanted if name in recorded]


def curves(runs: Sequence[Run], metric: str, *, axis: Axis = "step") -> Curves:
    """The current values of the metric. A run that never recorded it has an empty curve."""
    limit = max(FEWEST_POINTS, min(POINTS, MOST_POINTS // max(1, len(runs))))
    longest, total = max((run.step for run in runs), default=0), sum(run.step for run in runs)
    read = next((width for width in (1, *WIDTHS) if total <= MOST_ROWS * width), WIDTHS[-1])
    stretches = limit // 3
    width = read if longest <= read * (limit if read == 1 else stretches) else read * -(-longest // (read * stretches))
    joined: dict[int, dict[int, list[float]]] = {run.pk: {} for run in runs}
    ends: dict[int, dict[int, int]] = {run.pk: {} for run in runs}
    for run_id, last, low, high, value in _values(runs, metric, read, width):
        at = (last - 1) // width
        into = joined[run_id].get(at)
        if into is None:
            joined[run_id][at] = [low, high, value]
        else:
            into[:] = [min(into[0], low), max(into[1], high), value]
        ends[run_id][at] = last
    steps = {pk: tuple(own.values()) for pk, own in ends.items()}
    x = _positions(runs, steps, axis, read, width)
    return Curves(
        width,
        {
            pk: Curve(
                steps[pk],
                value=tuple(part[2] for part in own.values()),
                low=tuple(part[0] for part in own.values()),
                high=tuple(part[1] for part in own.values()),
                x=x[pk],
            )
            for pk, own in joined.items()
        },
    )


# What is current of a run: of each attempt the steps that no later one took the place of.

_PARTS = "unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[]) AS part (run_id, attempt_id, first, last)"
_BUCKETS = f"""
    SELECT part.run_id, part.attempt_id, bucket.first_step,
        (value.numbers -> 0)::float8, (value.numbers -> 1)::float8, (value.numbers -> 2)::float8
    FROM {_PARTS}
    JOIN runs_bucket AS bucket
        ON bucket.attempt_id = part.attempt_id AND bucket.first_step BETWEEN part.first AND part.last
    CROSS JOIN LATERAL (SELECT bucket.metrics -> %s AS numbers) AS value
    WHERE bucket.width = %s
    ORDER BY bucket.attempt_id, bucket.first_step
"""
_STEPS = f"""
    SELECT part.run_id, max(step.step), min(value.number), max(value.number),
        (array_agg(value.number ORDER BY step.step DESC))[1]
    FROM {_PARTS}
    JOIN runs_stepmetric AS step
        ON step.run_id = part.run_id AND step.step BETWEEN part.first AND part.last
        AND step.attempt_id = part.attempt_id
    CROSS JOIN LATERAL (
        SELECT (CASE WHEN %s THEN step.seconds -> %s ELSE step.metrics -> %s END)::float8 AS number
        OFFSET 0
    ) AS value
    WHERE value.number IS NOT NULL
    GROUP BY part.run_id, (step.step - 1) / %s
"""


@dataclass
class _Part:
    run_id: int
    attempt_id: int
    first: int
    """First step that is not read yet."""
    last: int


def _values(runs: Sequence[Run], metric: str, read: int, width: int) -> list[tuple[int, int, float, float, float]]:
    """(run, last step, lowest, highest, last value) of each bucket of `read` steps, and of what no bucket holds in each
    stretch of `width`; in the order of steps."""
    parts = _parts(runs)
    rows: list[tuple[int, int, float, float, float]] = []
    with connection.cursor() as cursor:
        while read > 1:
            spans = [
                (part.run_id, part.attempt_id, first_of(part.first, read), max(0, part.last - read + 1))
                for part in parts.values()
            ]
            cursor.execute(_BUCKETS, [*_columns(spans), metric, read])
            for run_id, attempt_id, first, low, high, value in cursor.fetchall():
                last = first + read - 1
                parts[attempt_id].first = last + 1
                if value is not None:
                    rows.append((run_id, last, low, high, value))
            read //= FACTOR
        spans = [(part.run_id, part.attempt_id, part.first, part.last) for part in parts.values()]
        phase = metric.removeprefix("seconds/")
        cursor.execute(_STEPS, [*_columns(spans), phase != metric, phase, metric, width])
        rows += cursor.fetchall()
    return sorted(rows, key=lambda row: row[1])


def _parts(runs: Sequence[Run]) -> dict[int, _Part]:
    """By attempt."""
    attempts = Attempt.objects.filter(run__in=runs).order_by("run_id", "fence")
    parts = {}
    for pk, run_id, resumed, through in attempts.values_list("pk", "run_id", "resumed_step", "valid_through"):
        first, last = (resumed or 0) + 1, _END if through is None else through
        if last >= first:
            parts[pk] = _Part(run_id, pk, first, last)
    return parts


def _columns(spans: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(column) for column in zip(*spans, strict=True)] if spans else [[], [], [], []]


_TIMES = """
    SELECT point.run_id, point.step, EXTRACT(EPOCH FROM step.at - began.at)::float8 / 3600
    FROM unnest(%s::bigint[], %s::int[]) AS point (run_id, step)
    JOIN runs_stepmetric AS step ON step.run_id = point.run_id AND step.step = point.step
    JOIN runs_attempt AS attempt ON attempt.id = step.attempt_id
        AND (attempt.valid_through IS NULL OR step.step <= attempt.valid_through)
    CROSS JOIN LATERAL (
        SELECT earliest.at FROM runs_stepmetric AS earliest WHERE earliest.run_id = point.run_id
        ORDER BY earliest.step, earliest.at LIMIT 1
    ) AS began
"""


def _positions(
    runs: Sequence[Run], steps: dict[int, tuple[int, ...]], axis: Axis, read: int, width: int
) -> dict[int, tuple[float | None, ...]]:
    """Of each point. time: hours since the run first recorded a step, pauses and waits in it; samples: completions of
    the config's size of a step."""
    if axis == "samples":
        sizes = {run.pk: samples_per_step(run.parsed_config) for run in runs}
        return {pk: tuple(float(step * sizes[pk]) for step in own) for pk, own in steps.items()}
    if axis == "step":
        return dict(steps)
    known: dict[tuple[int, int], float] = {}
    if axis == "tokens":
        known = {(run_id, last): value for run_id, last, _, _, value in _values(runs, TOKENS, read, width)}
    else:
        points = [(pk, step) for pk, own in steps.items() for step in own]
        with connection.cursor() as cursor:
            cursor.execute(_TIMES, [[pk for pk, _ in points], [step for _, step in points]])
            known = {(run_id, step): hours for run_id, step, hours in cursor.fetchall()}
    return {pk: tuple(known.get((pk, step)) for step in own) for pk, own in steps.items()}


def csv_rows(runs: Sequence[Run], metric: str, drawn: Curves) -> Iterator[list[Any]]:
    """Header and one row a point, for csv_line."""
    yield ["run", "name", "step", metric, "lowest", "highest"]
    for run in runs:
        curve = drawn.by_run[run.pk]
        for row in zip(curve.step, curve.value, curve.low, curve.high, strict=True):
            yield [run.pk, run.name, *row]


_LAST_TEN = """
    SELECT run.id, avg(value.number), coalesce(stddev_samp(value.number), 0), count(value.number)
    FROM runs_run AS run
    CROSS JOIN LATERAL (
        SELECT (step.metrics -> 'reward')::float8 AS number
        FROM runs_stepmetric AS step
        JOIN runs_attempt AS attempt ON attempt.id = step.attempt_id
            AND (attempt.valid_through IS NULL OR step.step <= attempt.valid_through)
        WHERE step.run_id = run.id AND step.metrics ? 'reward'
        ORDER BY step.step DESC LIMIT 10
    ) AS value
    WHERE run.id = ANY(%s)
    GROUP BY run.id
"""


@dataclass(frozen=True)
class LastReward:
    """Over the last ten current steps with a reward, or as many as there are."""

    mean: float
    std: float
    steps: int


def last_rewards(runs: Sequence[Run]) -> dict[int, LastReward]:
    """By run; none for a run without a step."""
    with connection.cursor() as cursor:
        cursor.execute(_LAST_TEN, [[run.pk for run in runs]])
        return {pk: LastReward(*row) for pk, *row in cursor.fetchall()}
