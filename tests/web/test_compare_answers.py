"""Answers of several runs side by side: of evaluations by item, and of training problems."""

from django.test import Client

from cohort.accounts.models import User
from cohort.catalog.run_inputs import ChosenSuite
from cohort.evaluations.across_runs import items_across, results_across
from cohort.review.across_runs import problems_across
from tests.factories.runs import Maker, add_evaluation, add_group
from tests.factories.suites import CHOICES, HARMFUL, add_suite
from tests.web.compare_page import address, evaluated, trained
from tests.web.pages import html
from tests.web.run_page import words


def test_items_are_listed_by_disagreement_and_opened_side_by_side(viewer: Client, maker: Maker) -> None:
    base, other = evaluated(maker, "base", [1, 0, 1]), evaluated(maker, "other", [1, 1, 0])
    rows = items_across([base, other], results_across([base, other])["heldout"])
    assert [(row.problem_id, row.values) for row in rows] == [
        ("held-1", (0, 1)),
        ("held-2", (1, 0)),
        ("held-0", (1, 1)),
    ]
    page = html(viewer.get(address(base, other, part="answers/", suite="heldout")))
    assert "what is 1 + 1?" in page
    assert page.count("after 1 &lt;answer&gt;") == 2, "each run's completion"
    assert "1 of 2" in words(page)
    lost = words(html(viewer.get(address(base, other, part="answers/", suite="heldout", show="lost"))))
    assert "held-2" in lost
    assert "held-1" not in lost
    chosen = html(viewer.get(address(base, other, part="answers/", suite="heldout", show="all", item="held-0")))
    assert "what is 0 + 1?" in chosen
    assert "item=held-2" in chosen, "the one before it"


def test_training_problems_are_those_with_one_id_and_one_prompt(viewer: Client, maker: Maker) -> None:
    first, second = trained(maker, "a", [0.5]), trained(maker, "b", [0.5])
    for run, rewards in ((first, [1.0, 0.0]), (second, [1.0, 1.0])):
        attempt = run.attempts.get()
        add_group(attempt, rewards, index=0, completion=f"<answer>{run.name}</answer>")
        add_group(attempt, rewards, index=1, prompt=f"only of {run.name}")
    (problem,) = problems_across([first, second])
    assert (problem.problem_id, problem.values, problem.spread) == ("p0", (0.5, 1.0), 0.5)
    page = html(viewer.get(address(first, second, part="answers/")))
    assert page.count("&lt;answer&gt;a&lt;/answer&gt;") == 2
    assert page.count("&lt;answer&gt;b&lt;/answer&gt;") == 2
    assert 'aria-label="1 of 2 right"' in page


def test_texts_of_a_sensitive_suite_are_for_reviewers(
    viewer: Client, reviewer: Client, maker: Maker, alice: User
) -> None:
    version = add_suite(maker.project, alice, "locks", spec=HARMFUL, content=CHOICES)
    runs = []
    for name, scores in (("a", [1, 0]), ("b", [0, 0])):
        run = maker.launched(name, ChosenSuite(version), eval={"holdout": 4})
        attempt = maker.attempt(run)
        add_evaluation(attempt, "after", scores, suite="locks")
        runs.append(run)
    where = address(*runs, part="answers/", suite="locks")
    hidden = html(viewer.get(f"{where}&texts=1"))
    assert "what is 0 + 1?" not in hidden
    assert "held-0" in hidden
    assert "for reviewers and above" in hidden
    assert "what is 0 + 1?" not in html(reviewer.get(where)), "not before they ask"
    assert "what is 0 + 1?" in html(reviewer.get(f"{where}&texts=1"))
