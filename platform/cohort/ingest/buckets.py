"""What a long chart draws: 16 steps in one row, 16 of those rows in one of 256, and so on, made while steps arrive.

A bucket is made from the rows of its own attempt when its last step is stored, and never changed: an attempt that was
resumed in the middle of one has fewer steps in it, and the earlier attempt's part of it is read step by step.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import psycopg
from pydantic_core import from_json, to_json

from grpo_core.records import types as records

FACTOR = 16
WIDTHS = tuple(FACTOR**power for power in range(1, 7))
"""16 to 16,777,216 steps."""

Numbers = dict[str, list[float]]
"""{metric: [min, max, last, count]}"""

_MISSING = """
    SELECT step, metrics, seconds FROM runs_stepmetric
    WHERE run_id = %s AND step BETWEEN %s AND %s AND attempt_id = %s ORDER BY step
"""
_LOWER = """
    SELECT metrics FROM runs_bucket
    WHERE attempt_id = %s AND width = %s AND first_step BETWEEN %s AND %s ORDER BY first_step
"""
_MADE = """
    INSERT INTO runs_bucket (attempt_id, width, first_step, metrics)
    SELECT %s, %s, made.first_step, made.metrics FROM unnest(%s::int[], %s::jsonb[]) AS made (first_step, metrics)
    ON CONFLICT DO NOTHING
"""


def buckets_store(
    cursor: "psycopg.Cursor[Any]", *, attempt_id: int, run_id: int, steps: Sequence[records.StepMetrics]
) -> None:
    """Make the buckets that `steps`, in rising order and just stored, complete. For each width at most 15 rows of the
    attempt that were stored before are read again.
    """
    ends = [step.step for step in steps if step.step % FACTOR == 0]
    if not ends:
        return
    first = ends[0] - FACTOR + 1
    rows: list[tuple[int, dict[str, float]]] = []
    if first < steps[0].step:
        cursor.execute(_MISSING, (run_id, first, steps[0].step - 1, attempt_id), prepare=True)
        rows = [(step, numbers(from_json(metrics), from_json(seconds))) for step, metrics, seconds in cursor]
    rows += [(step.step, numbers(step.metrics, step.seconds)) for step in steps]
    parts: dict[int, list[Numbers]] = {}
    for step, metrics in rows:
        parts.setdefault(first_of(step, FACTOR), []).append(point(metrics))
    made = {end - FACTOR + 1: joined(parts[end - FACTOR + 1]) for end in ends}
    _insert(cursor, attempt_id, FACTOR, made)
    for lower, width in pairwise(WIDTHS):
        ends = [end for end in ends if end % width == 0]
        if not ends:
            return
        made = {}
        for end in ends:
            begin = end - width + 1
            cursor.execute(_LOWER, (attempt_id, lower, begin, end), prepare=True)
            made[begin] = joined(from_json(metrics) for (metrics,) in cursor)
        _insert(cursor, attempt_id, width, made)


def first_of(step: int, width: int) -> int:
    """First step of the bucket that the step lies in."""
    return (step - 1) // width * width + 1


def numbers(metrics: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
    """All numbers of a step, its phases as `seconds/<phase>`."""
    return {**metrics, **{f"seconds/{name}": value for name, value in seconds.items() if name != "total"}}


def point(metrics: dict[str, float]) -> Numbers:
    """One step as a bucket."""
    return {name: [value, value, value, 1] for name, value in metrics.items()}


def joined(parts: Iterable[Numbers]) -> Numbers:
    """Buckets in rising order as one."""
    whole: Numbers = {}
    for part in parts:
        for name, (low, high, last, count) in part.items():
            into = whole.get(name)
            if into is None:
                whole[name] = [low, high, last, count]
            else:
                into[:] = [min(into[0], low), max(into[1], high), last, into[3] + count]
    return whole


def joined_steps(steps: Iterable[Mapping[str, float]]) -> Numbers:
    """Steps in rising order as one: as `joined` of the `point` of each, without a list for each of their numbers."""
    whole: Numbers = {}
    for metrics in steps:
        for name, value in metrics.items():
            into = whole.get(name)
            if into is None:
                whole[name] = [value, value, value, 1]
                continue
            if value < into[0]:
                into[0] = value
            if value > into[1]:
                into[1] = value
            into[2] = value
            into[3] += 1
    return whole


def _insert(cursor: "psycopg.Cursor[Any]", attempt_id: int, width: int, made: dict[int, Numbers]) -> None:
    texts = [to_json(numbers).decode() for numbers in made.values()]
    cursor.execute(_MADE, (attempt_id, width, list(made), texts), prepare=True)
