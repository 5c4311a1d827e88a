"""A run with many suites: each by its category with its own margin, slices, the clean subset, Holm over the safety
family, and the texts of sensitive ones kept from most."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.governance.facts import collect
from cohort.runs.models import Attempt, Run
from cohort.runs.selectors.evaluations import suites
from cohort.runs.services import ChosenSuite, run_create, run_submit
from grpo_core.config import RunConfig
from grpo_core.stats import holm
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker, add_evaluation, put_in
from tests.web.suite_rows import CHOICES, HARMFUL, add_suite

ClientFor = Callable[[User], Client]


@pytest.fixture
def run(ours: Project, alice: User, maker: Maker) -> Run:
    """Ended, with the held-out problems and three suites measured both times: 20 items each."""
    versions = [
        ChosenSuite(add_suite(ours, alice), margin=0.1),
        ChosenSuite(add_suite(ours, alice, "locks", spec=HARMFUL, content=CHOICES), margin=0.02),
        ChosenSuite(add_suite(ours, alice, "facts"), margin=None),
    ]
    run = run_create(**maker._named("many"), settings={"eval": {"holdout": 4, "margin": 0.05}}, suites=versions)
    put_in(run, "succeeded")
    attempt = maker.attempt(run, state="finished")
    for name, before, after in (
        ("heldout", [0] * 20, [1] * 12 + [0] * 8),
        ("capitals", [1] * 12 + [0] * 8, [0] * 10 + [1] * 2 + [0] * 8),
        ("locks", [0] * 20, [1] * 9 + [0] * 11),
        ("facts", [1] * 10 + [0] * 10, [1] * 10 + [0] * 10),
    ):
        for phase, scores in (("before", before), ("after", after)):
            more = {"slices": ["even", "odd"], "clusters": [f"c{n}" for n in range(10)]} if name == "facts" else {}
            add_evaluation(attempt, phase, scores, suite=name, completion=f"SECRET of {name}", **more)
    return run


def test_every_suite_by_category_with_its_own_margin_and_verdict(client_for: ClientFor, bob: User, run: Run) -> None:
    text = words(page_of(client_for(bob), run, "evaluations/"))
    table = text.split("All suites")[1].split("Brackets")[0]
    assert re.search(r"Performance Held-out problems heldout , 20 items; harm is a fall", table)
    assert re.search(r"Hallucination Capitals capitals , 20 items.*Capitals facts , 20 items", table)
    assert "Harmful capability Locks sensitive locks , 20 items; harm is a rise" in table
    assert "+60.0 points better" in table
    assert "−50.0 points regressed" in table, "capitals: 10 of 20 broken"
    assert "+45.0 points regressed" in table, "locks: a rise is harm"
    assert table.count("regressed") == 2
    for margin in ("10 points", "2 points", "5 points"):
        assert margin in table


def test_the_numbers_are_those_of_the_library(run: Run) -> None:
    """Exact McNemar: 10 broken of 10, 9 of 9. The third of the family has no discordant item, and p 1."""
    found = {suite.name: suite for suite in suites(run, RunConfig.from_whole(run.config))}
    assert list(found) == ["heldout", "capitals", "facts", "locks"]
    p = [2 / 2**10, 1.0, 2 / 2**9]
    adjusted = [found[name].compared["change"]["p_holm"] for name in ("capitals", "facts", "locks")]
    assert adjusted[0] == pytest.approx(holm(p)[0]) == pytest.approx(3 * p[0])
    assert adjusted[2] == pytest.approx(2 * p[2])
    assert found["heldout"].compared["change"]["p_holm"] is None, "not of the safety family"
    assert found["facts"].compared["change"]["clusters"] == 10
    assert found["locks"].compared["higher_is"] == "worse"
    assert [found[name].compared["margin"] for name in ("heldout", "capitals", "facts", "locks")] == [
        *(0.05, 0.1, 0.05, 0.02),
    ], "facts takes the run's general margin"


def test_slices_stand_in_a_fold(client_for: ClientFor, bob: User, run: Run) -> None:
    page = page_of(client_for(bob), run, "evaluations/", suite="facts")
    text = words(page)
    assert "2 slices" in text
    assert "even 10 50.0 % 50.0 %" in text
    assert "10 clusters" in text
    assert "2 slices" not in words(page_of(client_for(bob), run, "evaluations/", suite="capitals"))


def test_the_clean_subset_is_told(client_for: ClientFor, bob: User, run: Run) -> None:
    """Items 0 to 9 of capitals, all of them broken, were in the training file: the other 10 did not change."""
    touched = [{"id": f"held-{n}", "by": ["exact"]} for n in range(10)]
    told = {"overlap": {"capitals": {"touched": touched}, "locks": {"touched": []}}}
    Attempt.objects.filter(run=run).update(manifest={"data": told})
    text = words(page_of(client_for(bob), run, "evaluations/", suite="capitals"))
    assert "Without the 10 items that overlap with the training file: 10 items, 20.0 % before, 20.0 % after" in text
    assert "0 points" in text.split("Without the 10 items")[1][:120]
    text = words(page_of(client_for(bob), run, "evaluations/", suite="locks"))
    assert "The training file holds none of these items" in text
    text = words(page_of(client_for(bob), run, "evaluations/", suite="facts"))
    assert "training file" not in text, "nobody looked"


@pytest.mark.parametrize("overlap", [None, [], "x", {"capitals": 3}, {"capitals": {"touched": [3, {"id": 4}, None]}}])
def test_a_strange_manifest_breaks_no_page(client_for: ClientFor, bob: User, run: Run, overlap: object) -> None:
    Attempt.objects.filter(run=run).update(manifest={"data": {"overlap": overlap}})
    assert "−50.0 points" in words(page_of(client_for(bob), run, "evaluations/", suite="capitals"))


def test_items_are_filtered_suite_by_suite(client_for: ClientFor, bob: User, run: Run) -> None:
    client = client_for(bob)
    for suite, show, count in (
        *(("capitals", "changed", 10), ("capitals", "fixed", 0), ("capitals", "broken", 10), ("capitals", "all", 20)),
        *(("heldout", "fixed", 12), ("facts", "changed", 0), ("no such suite", "changed", 12)),
    ):
        text = words(page_of(client, run, "evaluations/", suite=suite, show=show))
        assert f"showing {count} of {count}" in text, (suite, show)
    text = words(page_of(client, run, "evaluations/", suite="locks"))
    assert "9 rose 0 fell" in text, "more right answers are no repair where they are harm"
    assert "fixed" not in text.split("Items of Locks")[1].split("Imported")[0]
    page = page_of(client, run, "evaluations/", suite="capitals", show="broken")
    assert "SECRET of capitals" in page
    assert "SECRET of heldout" not in page


def test_sensitive_texts_are_behind_a_click_and_for_reviewers(
    client_for: ClientFor, bob: User, rita: User, run: Run
) -> None:
    asked = {"suite": "locks", "show": "all"}
    for client in (client_for(bob), client_for(rita)):
        page = page_of(client, run, "evaluations/", **asked)
        assert "SECRET" not in page, "not without asking"
        assert "held-3" in page, "ids and scores are shown"
    assert "show the texts of this sensitive suite" in page
    opened = page_of(client_for(rita), run, "evaluations/", **asked, texts="1")
    assert opened.count("SECRET of locks") == 40
    refused = page_of(client_for(bob), run, "evaluations/", **asked, texts="1")
    assert "SECRET" not in refused
    assert "texts of a sensitive suite are for reviewers and above" in words(refused)


def test_the_runs_own_page_sums_them_up(client_for: ClientFor, bob: User, run: Run) -> None:
    text = words(page_of(client_for(bob), run))
    summary = text.split("Before and after")[1]
    for title in ("Held-out problems", "Capitals", "Locks"):
        assert title in summary
    assert "Each suite has its own margin, fixed before the run." in summary
    for margin in ("hallucination, 20 items, margin 10 points", "harmful capability, 20 items, margin 2 points"):
        assert margin in summary
    assert "SECRET" not in text


def test_page_and_record_compare_alike(ours: Project, alice: User, maker: Maker) -> None:
    run = run_create(
        **maker._named("both"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(add_suite(ours, alice))]
    )
    run_submit(run=run, actor=alice)
    attempt = maker.attempt(run, state="finished")
    for phase, scores in (("before", [1] * 12), ("after", [0] * 12)):
        add_evaluation(attempt, phase, scores, suite="capitals")
    page = suites(run, RunConfig.from_whole(run.config))
    record = collect(run, state="succeeded").comparisons
    assert [one.model_dump(mode="json") for one in record] == [one.compared for one in page]
    assert record[0].verdict == "regressed"
