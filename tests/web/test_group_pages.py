"""Groups of a run: the list by step, one group with its samples and its arithmetic."""

import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.review.selectors import current_groups
from cohort.runs.models import Run
from tests.web.group_page import card, listing, one, prompts, words_of
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker, add_group, gone_on

ClientFor = Callable[[User], Client]


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 4, "prompts_per_step": 3})


# ---------------------------------------------------------------- the list


def test_the_newest_step_with_squares_and_signal(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_group(attempt, [1.0, 0.0], step=1, prompt="old")
    add_group(attempt, [1.0, 0.0, None, 1.0], step=2, index=0, prompt="mixed one", advantages=[0.5, -1, 0, 0.5])
    add_group(attempt, [1.0] * 4, step=2, index=1, prompt="all right", signal="all_equal")
    page = listing(client_for(bob), run)
    assert prompts(page) == ["mixed one", "all right"]
    assert '<i class="right"></i><i class="wrong"></i><i class="masked"></i><i class="right"></i>' in page
    assert "2 of 4 right, 1 masked or not judged" in page
    text = words_of(page)
    assert "showing 2 of 2 groups kept; 3 sampled" in text
    assert "mixed one 0.67 0.50 highest |A|" in text
    assert "all right 1.00 0.50 no signal" in text


def test_steps_are_walked(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    for step in (1, 3, 7):
        add_group(attempt, [1.0, 0.0], step=step, prompt=f"step {step}")
    client = client_for(bob)
    page = listing(client, run, step=3)
    assert prompts(page) == ["step 3"]
    assert 'rel="prev" href="?step=1&amp;show=all"' in page
    assert 'rel="next" href="?step=7&amp;show=all"' in page
    assert "newest: 7" in page
    assert "No group was kept at this step" in listing(client, run, step=5)
    assert 'rel="next"' not in listing(client, run)


def test_filters_say_how_many_fit(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_group(attempt, [1.0, 0.0], index=0, prompt="mixed")
    add_group(attempt, [1.0, 1.0], index=1, prompt="equal", signal="all_equal")
    add_group(attempt, [1.0, None], index=2, prompt="broken", signal="unscored")
    zeroed = add_group(attempt, [0.0, 1.0], index=3, prompt="paid 0 on error")
    sample = zeroed.samples.get(index=0)
    sample.components["answer"]["error"] = "ValueError: no number"
    sample.save()
    client = client_for(bob)
    page = listing(client, run, show="mixed")
    assert prompts(page) == ["mixed", "paid 0 on error"]
    assert "showing 2 of 2 that fit; 4 kept; 3 sampled" in words_of(page)
    assert prompts(listing(client, run, show="errors")) == ["broken", "paid 0 on error"]
    assert len(prompts(listing(client, run, show="no-such-filter"))) == 4
    assert "not scored" in words_of(listing(client, run))


def test_a_repeated_step_shows_its_newest_attempt_only(
    client_for: ClientFor, bob: User, maker: Maker, run: Run
) -> None:
    """The first attempt kept two groups of step 2, the second one; step 1 was not repeated."""
    first = maker.attempt(run, state="lost")
    for index in (0, 1):
        add_group(first, [1.0, 0.0], step=2, index=index, prompt=f"first {index}")
    add_group(first, [1.0, 0.0], step=1, prompt="only once")
    second = maker.attempt(run)
    gone_on(second, 1)
    add_group(second, [1.0, 0.0], step=2, index=0, prompt="second 0")
    client = client_for(bob)
    assert prompts(listing(client, run)) == ["second 0"]
    assert prompts(listing(client, run, step=1)) == ["only once"]
    assert [group.prompt for group in current_groups(run)] == ["only once", "second 0"], "what the record keeps too"


def test_no_groups_yet_says_why(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    client = client_for(bob)
    assert "The first ones come with step 1." in words_of(listing(client, run))
    assert "This is a draft." in words_of(listing(client, maker.run()))
    assert "The run ended before its first step." in words_of(listing(client, maker.run(state="cancelled")))


@pytest.mark.parametrize("text", ["9" * 9, "9" * 18, "9" * 5000, "-1", "\0"])
def test_odd_addresses_are_answered(client_for: ClientFor, bob: User, maker: Maker, run: Run, text: str) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0])
    listing(client_for(bob), run, step=text, show=text)
    listing(client_for(bob), run, **{"from": text})
    one(client_for(bob), group, sample=text, variant=text)


def test_many_groups_come_in_pages(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    for index in range(105):
        add_group(attempt, [1.0, 0.0], index=index, prompt=f"p{index}")
    client = client_for(bob)
    page = listing(client, run)
    assert "showing 100 of 105 groups kept" in words_of(page)
    following = re.search(r'href="\?([^"]+)">More groups', page)
    assert following is not None
    rest = client.get(f"/p/ours/runs/{run.pk}/groups/?{following[1].replace('&amp;', '&')}").content.decode()
    assert prompts(rest) == [f"p{index}" for index in range(100, 105)]


def test_a_repeated_step_shows_the_newest_attempt_s_groups(
    client_for: ClientFor, bob: User, maker: Maker, run: Run
) -> None:
    lost = add_group(maker.attempt(run, state="lost"), [1.0, 0.0], prompt="lost")
    second = maker.attempt(run)
    gone_on(second, 0)
    group = add_group(second, [1.0, 0.0], prompt="kept")
    client = client_for(bob)
    assert prompts(listing(client, run)) == ["kept"]
    assert "group 1 of 1" in words_of(one(client, group))
    assert "no longer stands" in words_of(one(client, lost)), "its address stays good and says what it is"
    assert "no longer stands" not in words_of(one(client, group))


def test_no_groups_says_why(client_for: ClientFor, bob: User, maker: Maker) -> None:
    client = client_for(bob)
    assert "The first ones come with step 1" in words_of(listing(client, maker.run(state="training")))
    kept_none = maker.run(state="training", traces={"groups_per_step": 0})
    assert "traces.groups_per_step is 0" in words_of(listing(client, kept_none))
    assert "ended before its first step" in words_of(listing(client, maker.run(state="failed")))


def test_the_list_costs_the_same_however_many(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    client = client_for(bob)
    add_group(attempt, [1.0, 0.0])
    with CaptureQueriesContext(connection) as few:
        listing(client, run)
    for index in range(1, 30):
        add_group(attempt, [1.0, 0.0] * 4, index=index)
    with CaptureQueriesContext(connection) as many:
        listing(client, run)
    assert len(many) == len(few) <= 16


# ---------------------------------------------------------------- one group


def test_a_group_with_its_arithmetic(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    """3 of 8 right: mean 0.375, variance 0.234375, std 0.4841; +0.625/0.4842 = +1.29, −0.375/0.4842 = −0.77."""
    group = add_group(
        maker.attempt(run),
        [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        advantages=[1.29, -0.77, -0.77, 1.29, -0.77, -0.77, 1.29, -0.77],
        step=84,
        index=3,
    )
    page = one(client_for(bob), group)
    text = words_of(page)
    assert "what is 49 + 78?" in text
    assert "gold 127" in text
    assert "step 84 group 1 of 1" in text
    assert "r = [1, 0, 0, 1, 0, 0, 1, 0] mean = 0.375 std = √(0.2344) = 0.4841" in text
    assert "A = (r − 0.375) / (0.4841 + 0.0001) → 1 gives +1.29 , 0 gives −0.77" in text
    assert page.count("<article") == 8
    first, second = words_of(card(page, 1)), words_of(card(page, 2))
    assert "✓ right, reward 1 sample 1 A +1.29" in first
    assert "format 1 answer 1 extracted 127 52 tokens eos" in first, "in the order of the run's reward"
    assert "✕ wrong, reward 0 sample 2 A −0.77" in second


@pytest.mark.parametrize(
    ("variant", "label", "outcome"),
    [
        ("sample", "z-score, sample std", "1 gives +1.21 , 0 gives −0.72"),
        ("mean", "mean only", "1 gives +0.62 , 0 gives −0.38"),
        ("loo", "leave one out", "1 gives +0.71 , 0 gives −0.43"),
        ("batch", "batch std", "1 gives +1.29 , 0 gives −0.77"),
    ],
)
def test_other_variants_are_one_click_away(
    client_for: ClientFor, bob: User, maker: Maker, run: Run, variant: str, label: str, outcome: str
) -> None:
    """sample std √(1.875/7) = 0.5175; the others: 0.625·8/7 = 0.714. The only group is the whole batch."""
    group = add_group(maker.attempt(run), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0], advantages=[9.0] * 8)
    client = client_for(bob)
    assert f'href="?variant={variant}"' in one(client, group)
    page = one(client, group, variant=variant)
    text = words_of(page)
    assert outcome in text
    assert "The run used: z-score, population std" in text
    assert re.search(rf'href="\?variant={variant}"[^>]*aria-current="true"', page)
    assert "A +9.00" not in text, "the cards show what this variant would have given"


def test_a_batch_of_which_groups_are_missing_says_so(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0, 1.0, 1.0])
    assert "Not all groups of the step were kept" in words_of(one(client_for(bob), group, variant="batch"))


def test_the_run_s_own_variant_comes_first(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"scale": "none"})
    group = add_group(maker.attempt(run), [1.0, 0.0], advantages=[0.5, -0.5])
    text = words_of(one(client_for(bob), group))
    assert "A = r − 0.5 → 1 gives +0.50" in text
    assert "The run used" not in text


def test_a_masked_sample_says_why(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, None, 0.0])
    page = one(client_for(bob), group)
    masked = words_of(card(page, 2))
    assert "not scored" in masked
    assert "ValueError: no number" in masked
    assert "masked: no reward" in masked
    assert "1 sample has no reward" in words_of(page)


@pytest.mark.parametrize(
    ("cause", "words"),
    [("truncated", "masked: cut off"), ("importance", "masked: sampler and trainer disagree")],
)
def test_a_sample_left_out_of_the_update_says_why(
    client_for: ClientFor, bob: User, maker: Maker, run: Run, cause: str, words: str
) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0], masked={1: cause})
    client = client_for(bob)
    assert words in words_of(card(one(client, group), 2))
    assert "masked" not in words_of(card(one(client, group), 1))
    assert '<i class="right"></i><i class="masked"></i>' in listing(client, run)


def test_equal_rewards_say_no_signal(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 1.0, 1.0, 1.0], signal="all_equal")
    text = words_of(one(client_for(bob), group))
    assert "All rewards are equal, so every advantage is 0: no signal." in text
    assert "A 0.00" in text


def test_a_sample_has_an_address(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0, 1.0, 0.0])
    page = one(client_for(bob), group, sample=2)
    assert re.findall(r'<article class="panel sample selected" id="sample-(\d)"', page) == ["2"]
    assert "sample selected" not in one(client_for(bob), group)
    assert "sample selected" not in one(client_for(bob), group, sample="x")


def test_neighbours_keep_the_variant(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    before, group, after = (add_group(attempt, [1.0, 0.0], index=index) for index in range(3))
    other_step = add_group(attempt, [1.0, 0.0], step=2)
    page = one(client_for(bob), group, variant="loo")
    assert f'rel="prev" href="/p/ours/runs/{run.pk}/groups/{before.pk}/?variant=loo"' in page
    assert f'rel="next" href="/p/ours/runs/{run.pk}/groups/{after.pk}/?variant=loo"' in page
    assert str(other_step.pk) not in re.findall(r"/groups/(\d+)/", page)
    assert 'rel="prev"' not in one(client_for(bob), before)


def test_model_text_is_shown_and_does_not_run(client_for: ClientFor, bob: User, maker: Maker, run: Run) -> None:
    group = add_group(
        maker.attempt(run), [1.0, 0.0], prompt=HOSTILE, answer=HOSTILE, completion=HOSTILE, detail=HOSTILE
    )
    page = one(client_for(bob), group)
    assert page.count(HOSTILE_SHOWN) >= 6
    assert "<script>alert" not in page
    assert "<b hx-get" not in page
    assert "\u202e" not in page
    assert "\x07" not in page
    assert "\\u202e" in page, "it is not hidden either"
    assert re.search(r'<div class="completion mono" hx-disable>', page)


# ---------------------------------------------------------------- who


def test_who_and_how(client_for: ClientFor, bob: User, charlie: User, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, 0.0])
    elsewhere = add_group(maker.attempt(maker.run("other", state="training")), [1.0, 0.0])
    for address in (f"/p/ours/runs/{run.pk}/groups/", f"/p/ours/runs/{run.pk}/groups/{group.pk}/"):
        assert client_for(bob).get(address).status_code == 200
        assert client_for(bob).post(address).status_code == 405
        assert client_for(charlie).get(address).status_code == 404
        assert client_for(charlie).get(address.replace("ours", "theirs")).status_code == 404
    assert client_for(bob).get(f"/p/ours/runs/{run.pk}/groups/{elsewhere.pk}/").status_code == 404
