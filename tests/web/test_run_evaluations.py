"""Held-out accuracy on the pages of a run: the numbers with their uncertainty, and what may not be concluded."""

from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.governance.facts import collect
from cohort.runs.services import run_submit
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker, add_evaluation

ClientFor = Callable[[User], Client]


def test_accuracy_before_and_after_with_its_uncertainty(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """5 of 10, then 9 of 10: Wilson 23.7–76.3 % and 59.6–98.2 %; 4 fixed, 0 broken.

    Paired: +40 points, adjusted for two pseudo-observations: centre 4/12, square 5/12,
    error √((5/12 − 1/9)/12) = 0.1596, interval 33.3 ± 31.3.
    """
    run = maker.run(state="succeeded")
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    add_evaluation(attempt, "after", [1, 1, 1, 1, 1, 1, 1, 1, 1, 0])
    client = client_for(bob)
    text = words(page_of(client, run))
    assert "held-out 10 problems, same prompts and seeds" in text
    assert "50.0 % [23.7 %, 76.3 %] 90.0 % [59.6 %, 98.2 %]" in text
    assert "+40.0 points undecided at margin 5 [+2.06, +64.6]" in text, "the exact p is 0.12"
    assert "Margin 5 points, fixed before the run" in text
    page = page_of(client, run, "evaluations/")
    text = words(page)
    assert "4 fixed 0 broken 5 right both times 1 wrong both times exact McNemar p 0.12" in text
    assert "showing 4 of 4" in text
    assert "before 5 &lt;answer&gt;1&lt;/answer&gt;" in page
    assert "after 5 &lt;answer&gt;1&lt;/answer&gt;" in page
    assert "what is 0 + 1?" not in page, "a problem that did not change"
    assert "showing 10 of 10" in words(page_of(client, run, "evaluations/", show="all"))
    assert "showing 0 of 0" in words(page_of(client, run, "evaluations/", show="broken"))


def test_all_problems_can_be_seen(client_for: ClientFor, bob: User, maker: Maker) -> None:
    attempt = maker.attempt(maker.run(state="succeeded"), state="finished")
    add_evaluation(attempt, "before", [0] * 60)
    add_evaluation(attempt, "after", [1] * 60)
    client = client_for(bob)
    page = page_of(client, attempt.run, "evaluations/", show="fixed")
    assert "showing 50 of 60 · show all" in words(page)
    assert 'href="?suite=held-out&amp;show=fixed&amp;all=1#items"' in page
    assert "before 59 " not in page
    page = page_of(client, attempt.run, "evaluations/", show="fixed", all="1")
    assert "showing 60 of 60" in words(page)
    assert "before 59 " in page


def test_page_and_record_compare_alike(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """Four problems before, three of them after: nothing may be concluded, on the page as in the record."""
    run = maker.run()
    run_submit(run=run, actor=maker.actor)
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [0, 0, 0, 0])
    add_evaluation(attempt, "after", [1, 1, 1])
    client = client_for(bob)
    assert "not comparable: not the same problems both times" in words(page_of(client, run))
    text = words(page_of(client, run, "evaluations/"))
    assert "the two evaluations did not answer the same problems" in text
    assert "better" not in text
    assert [found.verdict for found in collect(run, state="succeeded").comparisons] == ["not comparable"]


def test_only_one_evaluation_claims_nothing(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    add_evaluation(maker.attempt(run), "before", [1, 0], suite="heldout")
    text = words(page_of(client_for(bob), run))
    assert "50.0 %" in text
    assert "points" not in text.split("Held-out accuracy")[1].split("Brackets")[0]
    assert "still to come" in words(page_of(client_for(bob), run, "evaluations/"))


def test_a_suite_alone_is_not_called_held_out_accuracy(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    add_evaluation(maker.attempt(run), "before", [1, 0], suite="capitals")
    page = page_of(client_for(bob), run)
    assert "Held-out accuracy" not in page
    assert "Before and after" in words(page)


def test_different_protocols_are_not_compared(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="succeeded")
    attempt = maker.attempt(run, state="finished")
    add_evaluation(attempt, "before", [0, 0, 0, 0])
    after = add_evaluation(attempt, "after", [1, 1, 1, 1])
    after.protocol = {"template": "{prompt}", "seed": 1}
    after.save()
    text = words(page_of(client_for(bob), run))
    assert "not comparable: the protocol changed" in text
    assert "better" not in text


def test_a_repeated_evaluation_counts_once(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """A second attempt evaluated again: its numbers hold, not the sum of both."""
    run = maker.run(state="training")
    add_evaluation(maker.attempt(run, state="lost"), "before", [0, 0, 0, 0])
    add_evaluation(maker.attempt(run), "before", [1, 0, 0, 0])
    text = words(page_of(client_for(bob), run))
    assert "held-out 4 problems" in text
    assert "25.0 %" in text


@pytest.mark.parametrize(
    ("state", "evaluated", "said"),
    [
        ("draft", True, "This is a draft. Held-out accuracy comes once it has been launched."),
        ("queued", True, "Held-out accuracy comes before training starts, and again when it has ended."),
        ("cancelled", True, "The run ended before it was evaluated."),
        ("succeeded", False, "This run is not evaluated: eval.before and eval.after are off"),
    ],
)
def test_no_evaluation_says_why(
    client_for: ClientFor, bob: User, maker: Maker, state: str, evaluated: bool, said: str
) -> None:
    run = maker.run(state=state, eval={"holdout": 4, "before": evaluated, "after": evaluated})
    assert said in words(page_of(client_for(bob), run, "evaluations/"))
