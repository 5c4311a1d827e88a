"""The tab "Review" of a run: people against the verifier, by step and class, and what to look at again."""

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.review.models import Group
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group, add_steps, gone_on
from tests.web.pages import html
from tests.web.run_page import queries, words

pytestmark = pytest.mark.django_db


def page_of(client: Client, run: Run) -> str:
    response = client.get(f"/p/ours/runs/{run.pk}/review/")
    assert response.status_code == 200
    return html(response)


def judge(group: Group, actor: User, *verdicts: str, note: str = "") -> None:
    for sample, verdict in zip(group.samples.order_by("index"), verdicts, strict=True):
        sample_judge(sample=sample, actor=actor, verdict=verdict, note=note)


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


def test_an_unjudged_run_says_how_to_begin(viewer: Client, run: Run) -> None:
    page = page_of(viewer, run)
    assert "Nobody has judged a completion of this run" in page
    assert f'href="/p/ours/runs/{run.pk}/groups/"' in page
    assert 'aria-current="page">Review' in page


def test_rates_with_intervals_by_step_and_class(viewer: Client, alice: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5, "rewards/reward/mean": 0.25}] * 40)
    for step in (3, 40):
        group = add_group(attempt, [1.0] * 6 + [0.0] * 4, step=step)
        judge(group, alice, *["right"] * 4, *["wrong"] * 2, "right", *["wrong"] * 3)
    text = words(page_of(viewer, run))
    # Wilson: 14 of 20 agree, 48.1 to 85.5; 4 of 12 passed are wrong, 13.8 to 60.9; 2 of 8 not passed are right
    assert "Agreement 70.0 % [48.1 %, 85.5 %] 14 of 20 completions" in text
    assert "False positives 33.3 % [13.8 %, 60.9 %] 4 of 12 passed by the verifier" in text
    assert "False negatives 25.0 % [7.1 %, 59.1 %] 2 of 8 not passed" in text
    assert "step 3 7 of 10" in text
    assert "step 40 7 of 10" in text
    assert "rewarded by: answer + format 8 of 12" in text
    assert "rewarded by: format 6 of 8" in text
    assert "chosen by people, not drawn at random" in text
    assert "Rewarded though wrong showing 4 of 4" in text
    assert "Newest judgements showing 20 of 20" in text


def test_the_chart_draws_both_and_the_runs_own_curve(viewer: Client, alice: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    success = run.parsed_config.reward.success_component
    add_steps(attempt, [{"reward": 0.5, f"rewards/{success}/mean": 0.25}] * 4)
    judge(add_group(attempt, [1.0, 1.0], step=2), alice, "right", "wrong")
    page = page_of(viewer, run)
    assert "<polyline" in page
    assert "step 2: the verifier passed 2 of 2, 100.0 % [34.2 %, 100.0 %]" in words(page)
    assert "step 2: people call right 1 of 2, 50.0 % [9.5 %, 90.5 %]" in words(page)


def test_superseded_samples_do_not_count_and_texts_are_inert(
    viewer: Client, alice: User, maker: Maker, run: Run
) -> None:
    attempt = maker.attempt(run, state="lost")
    kept = add_group(attempt, [1.0, 0.0], step=1, prompt=HOSTILE, completion=HOSTILE)
    later = add_group(attempt, [1.0, 0.0], step=2, prompt="superseded later")
    judge(kept, alice, "wrong", "wrong", note=HOSTILE)
    judge(later, alice, "wrong", "wrong")
    gone_on(maker.attempt(run), 1)
    page = page_of(viewer, run)
    assert "superseded later" not in page
    assert page.count(HOSTILE_SHOWN) >= 6, "prompt, completion and note in each list"
    assert "<script>alert" not in page
    assert f"/groups/{kept.pk}/?sample=1#sample-1" in page


def test_queries_do_not_grow_with_judgements(viewer: Client, alice: User, rita: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    judge(add_group(attempt, [1.0, 0.0], step=1), alice, "wrong", "wrong")
    few = queries(lambda: page_of(viewer, run))
    for step in range(2, 14):
        group = add_group(attempt, [1.0, 0.0], step=step)
        judge(group, alice, "wrong", "unsure")
        judge(group, rita, "right", "wrong")
    assert queries(lambda: page_of(viewer, run)) == few
    assert few <= 20
