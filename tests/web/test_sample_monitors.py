"""Samples by monitor: those of the steps at which a cause held by the trainer's events, in filter, facet and page; and
the filter that a re-score adds to the ready-made ones."""

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.review.filters import SampleFilter
from cohort.review.monitors import monitor_counts, spans_of
from cohort.review.ready_filters import ready_filters
from cohort.runs.models import Attempt, Run, RunEvent
from grpo_core.monitors.base import BEGAN, OVER
from tests.factories.rescores import ended_run, rescored, second
from tests.factories.runs import Maker, add_group, add_samples

pytestmark = pytest.mark.django_db


def reported(attempt: Attempt, kind: str, cause: str, step: int, **more: int) -> None:
    data = {"cause": cause, "step": step, **more}
    RunEvent.objects.create(
        run=attempt.run, attempt=attempt, actor="trainer", kind=kind, message=cause, data=data, at=timezone.now()
    )


@pytest.fixture
def run(maker: Maker) -> Run:
    """Eight steps of two samples, the first truncated. Duplicates in steps 3 to 5, truncation from step 6 on."""
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    for step in range(1, 9):
        group = add_group(attempt, [], step=step)
        score = {"value": 1.0, "passed": True, "error": None, "error_class": None}
        own = {"completion": "x", "tokens": 3, "reward": 1.0, "advantage": 0.0, "components": {"answer": score}}
        own |= {"mask_cause": None}
        add_samples(group, [{**own, "finish_reason": reason} for reason in ("length", "eos")])
    reported(attempt, BEGAN, "duplicates", 3)
    reported(attempt, BEGAN, "cut_off", 6)
    reported(attempt, OVER, "duplicates", 8, last=5)
    return run


def selected(run: Run, query: str) -> list[tuple[int, int]]:
    samples = SampleFilter.parse(QueryDict(query)).samples(run)
    return sorted(samples.values_list("step", "index"))


def test_a_monitor_selects_the_samples_of_its_steps(run: Run) -> None:
    assert selected(run, "monitor=duplicates") == [(step, index) for step in (3, 4, 5) for index in (0, 1)]
    assert selected(run, "monitor=cut_off") == [(step, 0) for step in (6, 7, 8)], "it is about truncated ones"
    assert selected(run, "monitor=all_equal") == []
    assert selected(run, "monitor=duplicates&finish=eos") == [(step, 1) for step in (3, 4, 5)]


def test_facets_count_what_monitors_flagged_and_lead_to_it(run: Run, client: Client, alice: User) -> None:
    counts = monitor_counts(SampleFilter().samples(run), run)
    assert counts == {"cut_off": 3, "duplicates": 6}
    client.force_login(alice)
    page = client.get(f"/p/ours/runs/{run.pk}/samples/?facets=1").content.decode()
    assert 'href="?monitor=duplicates"' in page
    assert "<h3>Monitor</h3>" in page
    page = client.get(f"/p/ours/runs/{run.pk}/samples/?monitor=duplicates").content.decode()
    assert "showing 6 of" in page


def test_spans_follow_the_trainers_events() -> None:
    """Of an attempt that is current to step 9 only, and of one that resumed from there."""
    events = [
        (BEGAN, {"cause": "duplicates", "step": 2}, 9),
        (OVER, {"cause": "duplicates", "step": 14, "last": 4}, 9),
        (BEGAN, {"cause": "all_right", "step": 12}, 9),
        (BEGAN, {"cause": "duplicates", "step": 11}, None),
        (OVER, {"cause": "duplicates", "step": 30, "last": 20}, None),
        (BEGAN, {"cause": "duplicates", "step": 50}, None),
        (OVER, {"cause": "all_wrong", "step": 60, "last": 50}, None),
    ]
    assert spans_of(events) == {"duplicates": [(2, 20), (50, None)]}, "what was over at step 14 is superseded with it"


def test_a_rescore_adds_its_disagreements_to_the_ready_filters(maker: Maker, client: Client, alice: User) -> None:
    run = ended_run(maker)
    assert "Rewarded, second verifier disagrees" not in [ready.name for ready in ready_filters(run)]
    rescore = rescored(run, second(maker), alice)
    (ready,) = [ready for ready in ready_filters(run) if ready.name == "Rewarded, second verifier disagrees"]
    looked_for = SampleFilter.parse(QueryDict(ready.query))
    assert looked_for.query == ready.query
    assert sorted(looked_for.samples(run).values_list("completion", flat=True)) == ["3.", "so 9."]
    client.force_login(alice)
    link = ready.query.replace("&", "&amp;")
    for address in ("samples/", f"rescores/{rescore.pk}/"):
        assert f"?{link}" in client.get(f"/p/ours/runs/{run.pk}/{address}").content.decode(), address
