"""The numbers of a run's steps, for charts and for download."""

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

from cohort.runs.charts import Row
from cohort.runs.models import Run, StepMetric


def current_steps(run: Run) -> QuerySet[StepMetric]:
    """One row per step in order: where an attempt repeated a step, the newest attempt's."""
    newest = StepMetric.objects.filter(run=run).order_by("step", "-attempt_id", "-seq").distinct("step")
    return StepMetric.objects.filter(pk__in=newest.values("pk")).order_by("step")


def step_rows(run: Run, *, after: int = 0) -> list[Row]:
    """(step, metrics) of the steps beyond `after`."""
    return list(current_steps(run).filter(step__gt=after).values_list("step", "metrics"))


def metric_table(run: Run) -> Iterator[list[Any]]:
    """Header and rows of every metric that any step reported; absent values are empty."""
    rows = list(current_steps(run).values_list("step", "at", "metrics", "seconds"))
    names = sorted({name for _, _, metrics, _ in rows for name in metrics})
    spans = sorted({name for _, _, _, seconds in rows for name in seconds})
    yield ["step", "at", *names, *(f"seconds/{name}" for name in spans)]
    for step, at, metrics, seconds in rows:
        numbers = [metrics.get(name, "") for name in names]
        yield [step, at.isoformat(), *numbers, *(seconds.get(name, "") for name in spans)]
