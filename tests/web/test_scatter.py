"""The scatter of a run's samples: which field a sample falls into, that all are counted, and what the page says."""

import html as markup
import json
import re
from typing import Any

import pytest
from django.test import Client

from cohort.review import scatter as module
from cohort.review.filters import SampleFilter
from cohort.review.models import Sample
from cohort.review.scatter import RIGHT, Axis, scatter
from cohort.runs.models import Attempt, Run
from tests.factories.runs import Maker, add_group, gone_on
from tests.web.run_page import page_of, queries, words


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 4, "prompts_per_step": 3})


@pytest.fixture
def attempt(maker: Maker, run: Run) -> Attempt:
    return maker.attempt(run)


def sized(attempt: Attempt, rewards: list[float | None], tokens: list[int], **other: Any) -> None:
    group = add_group(attempt, rewards, **other)
    for sample, count in zip(group.samples.order_by("index"), tokens, strict=True):
        Sample.objects.filter(pk=sample.pk).update(tokens=count)


def data_of(page: str) -> Any:
    match = re.search(r'data-scatter="([^"]*)"', page)
    assert match is not None
    return json.loads(markup.unescape(match[1]))


@pytest.mark.parametrize(
    ("low", "high", "most", "whole", "edges"),
    [
        (0, 1, 4, False, (0, 0.25, 0.5, 0.75)),
        (3, 3, 4, True, (3,)),
        (10, 12, 60, True, (10, 11, 12)),
        (0, 9, 4, True, (0, 3, 5, 8)),
        (-1, 1, 2, False, (-1, 0)),
    ],
)
def test_bins(low: float, high: float, most: int, whole: bool, edges: tuple[float, ...]) -> None:
    axis = Axis.of(low, high, most, whole=whole)
    assert axis.edges == edges
    assert axis.bounds(0, len(edges) - 1) == (low, high)
    for index, edge in enumerate(edges):
        least, largest = axis.bounds(index)
        assert (axis.bin_of(least), axis.bin_of(largest)) == (index, index)
        assert least == edge
    assert axis.bin_of(high) == len(edges) - 1


@pytest.mark.parametrize("most", [2000, 3], ids=["points", "grid"])
def test_every_sample_with_a_reward_is_in_one_field(
    run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """In Python and in SQL alike; those on an edge too."""
    monkeypatch.setattr(module, "MOST_POINTS", most)
    monkeypatch.setattr(module, "ACROSS", 3)
    monkeypatch.setattr(module, "UP", 2)
    sized(attempt, [0.0, 0.5, 1.0, None], [10, 20, 30, 99], step=1)
    sized(attempt, [1.0, 1.0, 0.5, 0.0], [40, 20, 19, 40], step=2)
    drawn = scatter(run, SampleFilter(), RIGHT)
    assert drawn is not None
    assert (drawn.matching, drawn.drawn, drawn.left_out) == (8, 7, 1)
    assert drawn.tokens.edges == (10, 21, 31), "of those with a reward"
    fields = {(cell.x, cell.y): (cell.count, cell.colour) for cell in drawn.cells}
    assert fields == {(0, 0): (1, 0), (0, 1): (3, 1 / 3), (1, 1): (1, 1), (2, 0): (1, 0), (2, 1): (1, 1)}, (
        "how many, and the share right: those whose reward is 1"
    )
    assert len(drawn.points) == (7 if most == 2000 else 0)


def test_a_component_colours_and_superseded_samples_are_left_out(maker: Maker, run: Run, attempt: Attempt) -> None:
    sized(attempt, [0.0, 1.0, 1.0, 1.0], [1, 2, 3, 4], step=1)
    sized(attempt, [0.0, 1.0, 1.0, 1.0], [1, 2, 3, 4], step=2)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    gone_on(maker.attempt(run), 1)
    drawn = scatter(run, SampleFilter(), "answer")
    assert drawn is not None
    assert [(point.step, point.tokens, point.colour) for point in drawn.points] == [
        (1, 1, 0.0),
        (1, 2, 1.0),
        (1, 3, 1.0),
        (1, 4, 1.0),
    ]


def test_the_page_says_what_is_drawn_and_links_to_it(
    viewer: Client, run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No sample that fits has a reward" in words(page_of(viewer, run, "samples/scatter/"))
    sized(attempt, [0.0, 1.0, 0.25, None], [10, 20, 30, 40])
    page = page_of(viewer, run, "samples/scatter/")
    assert "all samples: all 3 samples; without a reward and not drawn: 1" in words(page)
    assert [point[:3] for point in data_of(page)["points"]] == [[10, 0.0, 0.0], [20, 1.0, 1.0], [30, 0.25, 0.0]]
    monkeypatch.setattr(module, "MOST_POINTS", 1)
    page = page_of(viewer, run, "samples/scatter/", tokens_min="15", colour="format")
    assert "tokens from 15: counts of 2 samples in 11 × 40 fields" in words(page)
    for *_, count, mean, query in data_of(page)["cells"]:
        assert mean == 1.0
        assert page_of(viewer, run, f"samples/scatter/?{query}")
        assert SampleFilter.parse(dict(pair.split("=") for pair in query.split("&"))).samples(run).count() == count
    linked = re.findall(r'<a href="[^"?]*samples/\?([^"]+)">(\d+)</a>', page)
    assert sum(int(count) for _, count in linked) == 2
    assert page_of(viewer, run, "samples/scatter/", colour="nonsense")


def test_the_part_alone_for_htmx_and_a_fault_of_the_filter(viewer: Client, run: Run, attempt: Attempt) -> None:
    sized(attempt, [0.0, 1.0, 1.0, 1.0], [10, 20, 30, 40])
    address = f"/p/ours/runs/{run.pk}/samples/scatter/"
    part = viewer.get(address, headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith("<section")
    assert "<html" not in part
    refused = viewer.get(address, {"reward_min": "<b>"}, headers={"HX-Request": "true"})
    assert refused.status_code == 422
    assert "<b>" not in refused.content.decode()


def test_a_scatter_costs_the_same_however_many_samples(viewer: Client, run: Run, attempt: Attempt) -> None:
    sized(attempt, [0.0, 1.0, 1.0, 1.0], [10, 20, 30, 40])
    few = queries(lambda: page_of(viewer, run, "samples/scatter/"))
    for step in range(2, 12):
        sized(attempt, [0.0, 1.0, 1.0, 1.0], [10, 20, 30, 40], step=step)
    assert queries(lambda: page_of(viewer, run, "samples/scatter/")) == few <= 27
