"""The scatter of a run's samples, reward by length: a part of their page, and a page at its own address."""

import json
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from cohort.review.filters import SampleFilter
from cohort.review.scatter import RIGHT, Axis, Scatter, colours_of, scatter
from cohort.web.access import reviewed_run_for
from cohort.web.review.judging import shows_samples
from cohort.web.review.samples import filter_of
from cohort.web.runs.header import Header
from cohort.web.runs.page import charts_csp

COLUMNS, ROWS = 6, 8
"""Of the table of counts, at most."""


@require_safe
@charts_csp
@shows_samples
def run_scatter(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """By the filter of the samples' page; `colour` is a component's name, right or wrong without. For htmx the part."""
    header = Header(reviewed_run_for(request, slug, run_id))
    run, (looked_for, faults) = header.run, filter_of(request)
    colours = colours_of(run)
    colour = request.GET.get("colour", RIGHT)
    colour = colour if colour in colours else RIGHT
    drawn = None if faults else scatter(run, looked_for, colour)
    context: dict[str, Any] = {
        "run": run,
        "scatter": drawn,
        "faults": faults,
        "filter": looked_for,
        "colour": colour,
        "colours": colours,
        "RIGHT": RIGHT,
    }
    if drawn is not None:
        context["data"] = _data(drawn, looked_for, reverse("run_groups", args=[slug, run_id]), colour)
        context["table"] = _table(drawn, looked_for)
    if request.htmx:  # type: ignore[attr-defined]
        return render(request, "review/_scatter.html", context, status=422 if faults else 200)
    return render(request, "review/scatter.html", header.context("samples", **context))


def _data(drawn: Scatter, looked_for: SampleFilter, groups: str, colour: str) -> str:
    """What scatter.js draws, as JSON: `points` as [tokens, reward, colour, step, group, number], or `cells` as [middle
    of tokens, middle of reward, count, colour, query of its samples]."""
    cells = []
    if not drawn.points:
        for cell in drawn.cells:
            tokens, reward = drawn.tokens.bounds(cell.x), drawn.reward.bounds(cell.y)
            query = _inside(looked_for, tokens, reward)
            cells.append([sum(tokens) / 2, sum(reward) / 2, cell.count, cell.colour, query])
    points = [
        [point.tokens, point.reward, point.colour, point.step, point.group_id, point.number] for point in drawn.points
    ]
    return json.dumps({"groups": groups, "right": colour == RIGHT, "colour": colour, "points": points, "cells": cells})


def _inside(looked_for: SampleFilter, tokens: tuple[float, float], reward: tuple[float, float]) -> str:
    """The query of the samples that fit and lie within these bounds."""
    shortest, longest = map(int, tokens)
    inside = replace(looked_for, tokens_min=shortest, tokens_max=longest, reward_min=reward[0], reward_max=reward[1])
    return inside.query


@dataclass(frozen=True)
class TableRow:
    low: float
    high: float
    cells: tuple[tuple[int, str], ...]
    """(how many samples, their query)."""


@dataclass(frozen=True)
class CountTable:
    columns: tuple[tuple[float, float], ...]
    """Bounds of rewards."""
    rows: tuple[TableRow, ...]
    """By length."""


def _table(drawn: Scatter, looked_for: SampleFilter) -> CountTable:
    """The same counts in fewer fields, for people."""
    across, up = _joined(drawn.tokens, ROWS), _joined(drawn.reward, COLUMNS)
    counts: dict[tuple[int, int], int] = {}
    for cell in drawn.cells:
        place = (_part_of(cell.x, across), _part_of(cell.y, up))
        counts[place] = counts.get(place, 0) + cell.count
    columns = tuple(drawn.reward.bounds(*part) for part in up)
    rows = []
    for x, part in enumerate(across):
        tokens = drawn.tokens.bounds(*part)
        cells = tuple((counts.get((x, y), 0), _inside(looked_for, tokens, reward)) for y, reward in enumerate(columns))
        rows.append(TableRow(*tokens, cells))
    return CountTable(columns, tuple(rows))


def _joined(axis: Axis, most: int) -> list[tuple[int, int]]:
    """(first, last) bin of each part."""
    bins = len(axis.edges)
    size = -(-bins // most)
    return [(first, min(first + size, bins) - 1) for first in range(0, bins, size)]


def _part_of(index: int, parts: list[tuple[int, int]]) -> int:
    return index // (parts[0][1] - parts[0][0] + 1)
