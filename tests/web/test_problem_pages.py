"""A run's problems and one of them through time: what is listed, what is compared, and that hostile text stays text."""

import re
from dataclasses import replace
from hashlib import md5
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.catalog.run_inputs import ChosenSuite
from cohort.review.models import Group
from cohort.review.problems import Problems, problem_key
from cohort.runs.models import Attempt, EvalItem, Run
from cohort.web.review.curve import Curve
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_group, gone_on
from tests.factories.suites import SPEC, add_suite
from tests.web.run_page import page_of, queries, words


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 2, "prompts_per_step": 3})


@pytest.fixture
def attempt(maker: Maker, run: Run) -> Attempt:
    return maker.attempt(run)


def path_of(group: Group) -> str:
    return f"problems/{quote(problem_key(md5(group.prompt.encode()).hexdigest(), group.problem_id), safe='/')}/"


def write(group: Group, *completions: str) -> None:
    for sample, completion in zip(group.samples.order_by("index"), completions, strict=True):
        sample.completion = completion
        sample.save()


def test_problems_are_listed_by_how_their_reward_changed(viewer: Client, run: Run, attempt: Attempt) -> None:
    add_group(attempt, [1.0, 1.0], step=1, index=0, prompt="falls")
    add_group(attempt, [0.0, 1.0], step=1, index=1, prompt="rises")
    add_group(attempt, [0.0, 0.0], step=2, index=0, prompt="falls")
    add_group(attempt, [1.0, 1.0], step=3, index=1, prompt="rises")
    add_group(attempt, [1.0, 0.0], step=3, index=2, prompt="once")
    add_group(attempt, [1.0, 0.0], step=4, index=2, prompt="another with the id of once")
    listed = Problems(run, "change")[0:9]
    assert [(row.prompt, row.times, row.first, row.newest, row.change) for row in listed] == [
        ("falls", 2, 1, 2, -1.0),
        ("rises", 2, 1, 3, 0.5),
        *sorted(
            [("once", 1, 3, 3, None), ("another with the id of once", 1, 4, 4, None)],
            key=lambda row: md5(row[0].encode()).hexdigest(),
        ),
    ]
    assert [row.prompt for row in Problems(run, "-change")[0:2]] == ["rises", "falls"]
    assert [row.prompt for row in Problems(run, "newest")[0:1]] == ["falls"]
    text = words(page_of(viewer, run, "problems/"))
    assert "showing 4 of 4 problems" in text
    assert "falls p0 2 × 100.0 % right · reward 1.00 · step 1 0.0 % right · reward 0.00 · step 2 −1" in text
    assert words(page_of(viewer, run, "problems/", sort="-change")).index("rises") < text.index("falls") + 200


def test_superseded_groups_do_not_count(viewer: Client, maker: Maker, run: Run, attempt: Attempt) -> None:
    add_group(attempt, [1.0, 1.0], step=1)
    lost = add_group(attempt, [1.0, 1.0], step=2)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 1)
    add_group(second, [0.0, 0.0], step=2)
    row = Problems(run, "change")[0:1][0]
    assert (row.times, row.change) == (2, -1.0)
    text = words(page_of(viewer, run, path_of(lost)))
    assert "showing 2 of 2 groups" in text
    assert "compared above" in text


def test_a_problem_through_time(viewer: Client, run: Run, attempt: Attempt) -> None:
    group = add_group(attempt, [1.0, 0.0], step=3)
    write(group, "so the answer is 12", "no idea")
    page = page_of(viewer, run, path_of(group))
    assert "A second completion to compare" in words(page)
    assert "<svg" not in page.partition("<main")[2], "one step is no curve"
    newest = add_group(attempt, [0.0, 0.5], step=7)
    write(newest, "worst of all", "so the answer is 13")
    page = page_of(viewer, run, path_of(group))
    text = words(page)
    assert "what is 49 + 78?" in text
    assert "pass rate at step 3: 50 %" in text
    assert "mean reward at step 7: 0.25" in text
    assert "so the answer is <del>12</del>" in page, "best against best"
    assert "so the answer is <ins>13</ins>" in page
    assert "No answer of the base model is stored" in text
    page = page_of(viewer, run, path_of(group), a=str(newest.pk), b=str(group.pk), pick="worst", pick_b="2")
    assert "worst of all" in words(page)
    assert "no idea" in words(page)
    assert "so the answer" not in words(page)


@pytest.mark.parametrize("values", [{"a": "99999999", "b": "x"}, {"pick": "9", "pick_b": "nonsense"}])
def test_a_choice_that_does_not_exist_is_the_usual_one(
    viewer: Client, run: Run, attempt: Attempt, values: dict[str, str]
) -> None:
    group = add_group(attempt, [1.0, 0.0], step=3)
    add_group(attempt, [1.0, 0.0], step=7)
    assert words(page_of(viewer, run, path_of(group), **values)) == words(page_of(viewer, run, path_of(group)))


def test_the_base_models_answer_is_shown_where_it_was_evaluated(viewer: Client, run: Run, attempt: Attempt) -> None:
    add_evaluation(attempt, "before", [0.0], completion="base says 9")
    add_evaluation(attempt, "after", [1.0], completion="trained says 1")
    item = EvalItem.objects.get(phase="before")
    group = add_group(attempt, [1.0, 0.0], step=3, prompt=item.prompt)
    Group.objects.filter(pk=group.pk).update(problem_id=item.problem_id)
    group.refresh_from_db()
    text = words(page_of(viewer, run, path_of(group)))
    assert "base says 9" in text
    assert "trained says 1" not in text
    other = add_group(attempt, [1.0, 0.0], step=4, prompt="another problem of that id")
    Group.objects.filter(pk=other.pk).update(problem_id=item.problem_id)
    other.refresh_from_db()
    assert "base says 9" not in words(page_of(viewer, run, path_of(other)))


def test_answers_of_a_sensitive_suite_are_for_reviewers(viewer: Client, reviewer: Client, maker: Maker) -> None:
    version = add_suite(maker.project, maker.actor, "secret", spec=replace(SPEC, sensitive=True))
    run = maker.launched("first", ChosenSuite(version))
    attempt = maker.attempt(run)
    add_evaluation(attempt, "before", [0.0], suite="secret", completion="base says 9")
    item = EvalItem.objects.get()
    group = add_group(attempt, [1.0, 0.0], step=3, prompt=item.prompt)
    Group.objects.filter(pk=group.pk).update(problem_id=item.problem_id)
    group.refresh_from_db()
    assert "base says 9" not in words(page_of(viewer, run, path_of(group)))
    assert "1 of a sensitive suite" in words(page_of(viewer, run, path_of(group)))
    assert "base says 9" in words(page_of(reviewer, run, path_of(group)))


def test_hostile_text_stays_text_on_both_sides(viewer: Client, run: Run, attempt: Attempt) -> None:
    first = add_group(attempt, [1.0, 0.0], step=1, prompt=HOSTILE, answer=HOSTILE)
    second = add_group(attempt, [1.0, 0.0], step=2, prompt=HOSTILE, answer=HOSTILE)
    write(first, f"{HOSTILE} one", "")
    write(second, f"</div>{HOSTILE} <two\u200b>", "")
    page = page_of(viewer, run, path_of(first))
    for raw in ("<script>alert", "<b hx-get", "\u202e", "\x07", "\u200b"):
        assert raw not in page
    assert page.count(HOSTILE_SHOWN[:11]) >= 4
    assert "\\u200b" in page
    line = "a " * 500_000
    write(first, line, "")
    assert "too long for their differences" in words(page_of(viewer, run, path_of(first)))


def test_an_id_may_hold_any_character(viewer: Client, run: Run, attempt: Attempt) -> None:
    group = add_group(attempt, [1.0, 0.0])
    Group.objects.filter(pk=group.pk).update(problem_id="a/b?c=1#d:é %")
    group.refresh_from_db()
    page = page_of(viewer, run, "problems/")
    address = re.search(rf'href="/p/ours/runs/{run.pk}/(problems/[^"]+)"', page)
    assert address is not None
    response = viewer.get(f"/p/ours/runs/{run.pk}/{address[1].replace('&amp;', '&')}")
    assert response.status_code == 200
    assert viewer.get(f"/p/ours/runs/{run.pk}/problems/00000000:p0/").status_code == 404


def test_pages_cost_the_same_however_much_there_is(viewer: Client, run: Run, attempt: Attempt) -> None:
    group = add_group(attempt, [1.0, 0.0], step=1)
    add_group(attempt, [1.0, 0.0], step=2)
    few = [queries(lambda path=path: page_of(viewer, run, path)) for path in ("problems/", path_of(group))]
    for step in range(3, 20):
        for index in range(3):
            add_group(attempt, [1.0, 0.0], step=step, index=index)
    with CaptureQueriesContext(connection):
        many = [queries(lambda path=path: page_of(viewer, run, path)) for path in ("problems/", path_of(group))]
    assert many == few
    assert max(many) <= 27


def test_of_many_groups_the_newest_are_shown_and_that_is_said(
    viewer: Client, run: Run, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.web.review.problems.GROUPS", 3)
    groups = [add_group(attempt, [1.0, 0.0], step=step) for step in range(1, 8)]
    write(groups[0], "the very first", "x")
    text = words(page_of(viewer, run, path_of(groups[0])))
    assert "showing 3 of 7 groups" in text
    assert "the very first" in text, "compared, though it is not in the table"


def test_the_curve_is_drawn_to_scale() -> None:
    curve = Curve.of([(1, 0.0, -1.0), (5, 0.5, 0.0), (11, 1.0, 1.0)])
    assert curve is not None
    reward, rate = curve.lines
    assert [point.x for point in rate.points] == [44.0, 310.4, 710.0], "steps 1, 5 and 11 of 10 apart"
    assert [point.y for point in reward.points] == [176.0, 93.0, 10.0]
    assert [point.y for point in rate.points] == [93.0, 51.5, 10.0], "both on one axis, from −1 to 1"
    assert Curve.of([(1, 0.5, 0.5)]) is None
