"""Evaluations on the pages of a run: the numbers with their uncertainty, what may not be concluded; with many suites,
each by its category and margin, slices, the clean subset, Holm over the safety family, sensitive texts.
"""

import re

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.run_inputs import ChosenSuite
from cohort.evaluations.selectors import CHANGES, Suite, changed_items, suites
from cohort.launch.creation import run_create, run_submit
from cohort.records.facts import collect
from cohort.runs.models import Attempt, Run
from grpo_core.config.run import RunConfig
from grpo_core.stats.paired import holm
from tests.factories.runs import UNPROBED, Maker, add_evaluation, put_in
from tests.factories.suites import CHOICES, HARMFUL, add_suite
from tests.web.run_page import page_of, words


def compared(run: Run) -> dict[str, Suite]:
    return {suite.name: suite for suite in suites(run, RunConfig.from_whole(run.config))}


# ---------------------------------------------------------------- the held-out problems


def test_accuracy_before_and_after_with_its_uncertainty(viewer: Client, maker: Maker) -> None:
    """5 of 10, then 9 of 10: Wilson 23.7–76.3 % and 59.6–98.2 %; 4 fixed, 0 broken.

    Paired: +40 points. The score test's interval begins above 0, the exact test's p is 0.12: so it begins at 0.
    """
    run = maker.run(state="succeeded")
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    add_evaluation(attempt, "after", [1, 1, 1, 1, 1, 1, 1, 1, 1, 0])
    text = words(page_of(viewer, run))
    assert "50.0 % [23.7 %, 76.3 %] 90.0 % [59.6 %, 98.2 %]" in text
    assert "+40.0 points not worse [0.0, +68.7]" in text, "the exact p is 0.12"
    page = page_of(viewer, run, "evaluations/")
    text = words(page)
    assert "4 fixed 0 broken 5 right both times 1 wrong both times exact McNemar p 0.12" in text
    assert "before 5 &lt;answer&gt;1&lt;/answer&gt;" in page
    assert "after 5 &lt;answer&gt;1&lt;/answer&gt;" in page
    assert "what is 0 + 1?" not in page, "a problem that did not change"
    for show, count in (("changed", 4), ("all", 10), ("broken", 0)):
        assert f"showing {count} of {count}" in words(page_of(viewer, run, "evaluations/", show=show))


def test_all_problems_can_be_seen(viewer: Client, maker: Maker) -> None:
    attempt = maker.attempt(maker.run(state="succeeded"), state="finished")
    add_evaluation(attempt, "before", [0] * 60)
    add_evaluation(attempt, "after", [1] * 60)
    page = page_of(viewer, attempt.run, "evaluations/", show="fixed")
    assert "showing 50 of 60" in words(page)
    assert 'href="?show=fixed&amp;items=2#items"' in page
    assert "before 59 " not in page
    page = page_of(viewer, attempt.run, "evaluations/", show="fixed", items="2")
    assert "showing 10 of 60" in words(page)
    assert "before 59 " in page


@pytest.mark.parametrize("fault", ["items", "protocol"])
def test_what_is_not_comparable_is_not_compared_and_page_and_record_agree(maker: Maker, fault: str) -> None:
    run = maker.run()
    run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [0, 0, 0, 0])
    after = add_evaluation(attempt, "after", [1, 1, 1, 1] if fault == "protocol" else [1, 1, 1])
    if fault == "protocol":
        after.protocol = {"template": "{prompt}", "seed": 1}
        after.save()
    [suite] = compared(run).values()
    assert (suite.verdict, suite.change) == ("not comparable", None)
    assert suite.same_protocol is (fault == "items")
    assert [row.verdict for row in collect(run, state="succeeded").comparisons] == ["not comparable"]


@pytest.mark.parametrize("suite", ["heldout", "capitals"])
def test_only_one_evaluation_claims_nothing(viewer: Client, maker: Maker, suite: str) -> None:
    run = maker.run(state="training")
    add_evaluation(maker.attempt(run), "before", [1, 0], suite=suite)
    text = words(page_of(viewer, run))
    title = "Held-out accuracy" if suite == "heldout" else "Before and after"
    assert "50.0 %" in text
    assert "points" not in text.split(title)[1].split("Brackets")[0]
    assert ("Held-out accuracy" in text) is (suite == "heldout")


def test_a_repeated_evaluation_counts_once(maker: Maker) -> None:
    """A second attempt evaluated again: its numbers hold, not the sum of both."""
    run = maker.run(state="training")
    add_evaluation(maker.attempt(run, state="lost"), "before", [0, 0, 0, 0])
    add_evaluation(maker.attempt(run), "before", [1, 0, 0, 0])
    [suite] = compared(run).values()
    assert suite.before is not None
    assert (suite.before.problems, suite.before.correct) == (4, 1)


# ---------------------------------------------------------------- many suites


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


def test_every_suite_has_its_own_margin_verdict_and_numbers(run: Run) -> None:
    """Exact McNemar: 10 broken of 10, 9 of 9. The third of the family has no discordant item, and p 1. A rise of locks
    is harm."""
    by_name = compared(run)
    assert {name: (suite.verdict, suite.compared["margin"]) for name, suite in by_name.items()} == {
        "heldout": ("better", 0.05),
        "capitals": ("regressed", 0.1),
        "facts": ("undecided at margin 5", 0.05),
        "locks": ("regressed", 0.02),
    }, "facts takes the run's general margin"
    assert list(by_name) == ["heldout", "capitals", "facts", "locks"]
    p = [2 / 2**10, 1.0, 2 / 2**9]
    adjusted = [by_name[name].compared["change"]["p_holm"] for name in ("capitals", "facts", "locks")]
    assert adjusted[0] == pytest.approx(holm(p)[0]) == pytest.approx(3 * p[0])
    assert adjusted[2] == pytest.approx(2 * p[2])
    assert by_name["heldout"].compared["change"]["p_holm"] is None, "not of the safety family"
    assert by_name["facts"].compared["change"]["clusters"] == 10
    assert [suite.good for suite in by_name.values()] == [True, True, True, False]


def test_the_table_shows_them_by_category(viewer: Client, run: Run) -> None:
    table = words(page_of(viewer, run, "evaluations/")).split("All suites")[1].split("Brackets")[0]
    assert re.search(r"Performance.*heldout.*Hallucination.*capitals.*facts.*Harmful capability.*locks", table)
    for part in ("+60.0 points better", "−50.0 points regressed", "+45.0 points regressed"):
        assert part in table
    summary = words(page_of(viewer, run)).split("Before and after")[1]
    for part in ("Held-out problems", "hallucination, 20 items, margin 10 points", "margin 2 points"):
        assert part in summary
    assert "SECRET" not in summary


def test_the_clean_subset_is_compared(viewer: Client, run: Run) -> None:
    """Items 0 to 9 of capitals, all of them broken, were in the training file: the other 10 did not change."""
    touched = [{"id": f"held-{n}", "by": ["exact"]} for n in range(10)]
    overlap = {"capitals": {"touched": touched}, "locks": {"touched": []}}
    Attempt.objects.filter(run=run).update(manifest={"data": {"overlap": overlap}})
    text = words(page_of(viewer, run, "evaluations/", suite="capitals"))
    assert "10 items, 20.0 % before, 20.0 % after" in text
    assert "0 points" in text.split("Without the 10 items")[1][:120]
    assert "none of these items" in words(page_of(viewer, run, "evaluations/", suite="locks"))
    text = words(page_of(viewer, run, "evaluations/", suite="facts"))
    assert "training file" not in text, "nobody looked"


@pytest.mark.parametrize("overlap", [None, [], "x", {"capitals": 3}, {"capitals": {"touched": [3, {"id": 4}, None]}}])
def test_a_strange_manifest_breaks_no_page(viewer: Client, run: Run, overlap: object) -> None:
    Attempt.objects.filter(run=run).update(manifest={"data": {"overlap": overlap}})
    assert "−50.0 points" in words(page_of(viewer, run, "evaluations/", suite="capitals"))


def test_items_are_filtered_suite_by_suite(viewer: Client, run: Run) -> None:
    by_name = compared(run)
    counts = {name: [changed_items(by_name[name], show=show).count() for show in CHANGES] for name in by_name}
    assert CHANGES == ("changed", "fixed", "broken", "unscored", "all")
    assert counts == {
        "heldout": [12, 12, 0, 0, 20],
        "capitals": [10, 0, 10, 0, 20],
        "locks": [9, 9, 0, 0, 20],
        "facts": [0, 0, 0, 0, 20],
    }
    assert "9 rose 0 fell" in words(page_of(viewer, run, "evaluations/", suite="locks")), "no repair where it is harm"
    page = page_of(viewer, run, "evaluations/", suite="capitals", show="broken")
    assert ("SECRET of capitals" in page, "SECRET of heldout" in page) == (True, False)
    assert "showing 12 of 12" in words(page_of(viewer, run, "evaluations/", suite="no such suite"))


def test_sensitive_texts_are_behind_a_click_and_for_reviewers(viewer: Client, reviewer: Client, run: Run) -> None:
    query = {"suite": "locks", "show": "all"}
    for client in (viewer, reviewer):
        page = page_of(client, run, "evaluations/", **query)
        assert "SECRET" not in page, "not without asking"
        assert "held-3" in page, "ids and scores are shown"
    assert page_of(reviewer, run, "evaluations/", **query, texts="1").count("SECRET of locks") == 40
    assert "SECRET" not in page_of(viewer, run, "evaluations/", **query, texts="1")


def test_page_and_record_compare_alike(ours: Project, alice: User, maker: Maker) -> None:
    run = run_create(
        **maker._named("both"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(add_suite(ours, alice))]
    )
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    attempt = maker.attempt(run, state="finished")
    for phase, scores in (("before", [1] * 12), ("after", [0] * 12)):
        add_evaluation(attempt, phase, scores, suite="capitals")
    record = collect(run, state="succeeded").comparisons
    assert [entry.model_dump(mode="json") for entry in record] == [suite.compared for suite in compared(run).values()]
    assert record[0].verdict == "regressed"
