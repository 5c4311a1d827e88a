"""What the page of a re-score shows of its figures: the table of both verdicts, the curves as plain SVG made on the
server, with the same numbers in a table, and how long it still takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from cohort.base.formatting import num, percent
from cohort.lab.models import JobState
from cohort.review.models import Group, Rescore
from cohort.review.rescore_figures import VERDICTS, Row, rows_of, second_advantages, stored_counts, why_no_advantages
from cohort.web.svg import Plot, Tick

WORDS = {"right": "right", "wrong": "wrong", "": "not scored, or neither"}


@dataclass(frozen=True)
class CurvesDrawn:
    """Two lines on one axis: of the run's own reward and of the second."""

    title: str
    name: str
    """In the figures: right, or reward."""
    first: tuple[str, ...]
    """Points of polylines; a step without a value parts two of them."""
    second: tuple[str, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    plot: Plot


def curves(figures: dict[str, Any]) -> list[CurvesDrawn]:
    """Share right and mean reward by step; a curve without any value is left out."""
    drawn = (_drawn(figures["curve"], "right", "Share right"), _drawn(figures["curve"], "reward", "Mean reward"))
    return [each for each in drawn if each is not None]


def _drawn(points: Sequence[dict[str, Any]], name: str, title: str) -> CurvesDrawn | None:
    values: list[float] = [value for point in points for value in point[name] if value is not None]
    if not values:
        return None
    low, high = (0.0, 1.0) if name == "right" else (min(values), max(values))
    if high == low:
        low, high = low - 0.5, high + 0.5
    first: int = points[0]["step"]
    last: int = max(points[-1]["step"], first + 1)

    plot = Plot(first=first, last=last, low=low, high=high, left=52)

    def lines(at: int) -> tuple[str, ...]:
        parts: list[list[str]] = [[]]
        for point in points:
            value = point[name][at]
            if value is None:
                parts.append([])
            else:
                parts[-1].append(f"{plot.x(point['step'])},{plot.y(value)}")
        return tuple(" ".join(part) for part in parts if part)

    ticks = (low, (low + high) / 2, high)
    return CurvesDrawn(
        title=title,
        name=name,
        first=lines(0),
        second=lines(1),
        across=plot.across(sorted({first, (first + last) // 2, last}), lambda step: f"step {num(step)}"),
        up=plot.up(ticks, (lambda share: percent(share, 0)) if name == "right" else num),
        plot=plot,
    )


def confusion_rows(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """By what the run's own reward says, counts by what the second says."""
    return [
        {
            "words": WORDS[first],
            "cells": [
                {"count": count, "differs": bool(first and second) and first != second}
                for second, count in zip(VERDICTS, row, strict=True)
            ],
            "total": sum(row),
        }
        for first, row in zip(VERDICTS, figures["confusion"], strict=True)
    ]


def seconds_left(rescore: Rescore) -> timedelta | None:
    """By the pace of its worker so far; None before its first scores."""
    job = rescore.job
    scored = rescore.done - rescore.begun_with
    if job.state != JobState.RUNNING or job.started_at is None or scored <= 0:
        return None
    return (timezone.now() - job.started_at) / scored * (rescore.samples - rescore.done)


@dataclass(frozen=True)
class RescoredGroup:
    """A group by the newest re-score of its run."""

    rescore: Rescore
    rows: tuple[tuple[Row, float | None], ...]
    """Each sample that has a row, and its advantage by the second reward."""


def rescored_group(group: Group) -> RescoredGroup | None:
    """None where the run has no finished re-score, or none that scored this group. Three queries at most."""
    finished = Rescore.objects.filter(run=group.run_id, figures__isnull=False, newest_group__gte=group.pk)
    rescore = finished.select_related("run", "version__verifier").defer("figures").order_by("-pk").first()
    if rescore is None:
        return None
    config = rescore.run.parsed_config
    of_step = not why_no_advantages(config) and config.algorithm.scaling.uses_step
    compared = {"sample__step": group.step} if of_step else {"sample__group": group.pk}
    rows = list(rows_of(rescore, **compared))
    counts = stored_counts(Group.objects.filter(pk__in={row.group for row in rows}))
    seconds = {} if why_no_advantages(config) else second_advantages(rows, counts, config.algorithm)
    own = tuple((row, seconds.get(row.sample)) for row in rows if row.group == group.pk)
    return RescoredGroup(rescore, own) if own else None
