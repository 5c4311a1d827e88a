"""Groups of a run: the list by step, one group with its samples and the arithmetic that training used, against cases
worked by hand in tests/cases/review; and what people judge of samples.
"""

import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.review.figures import run_figures
from cohort.review.models import Annotation, Group
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from cohort.web.launch.variants import ALL
from cohort.web.review.arithmetic import (
    VARIANTS,
    derive,
    number,
    stored_only,
    variants_for,
)
from cohort.web.review.selectors import current_groups, step_groups
from grpo_core.advantages.base import GroupScores
from grpo_core.config.algorithm import AlgorithmConfig
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_group, gone_on
from tests.tables import cases
from tests.web.pages import html
from tests.web.run_page import queries, words


def listing(client: Client, run: Run, **query: object) -> str:
    response = client.get(f"/p/ours/runs/{run.pk}/groups/", query)
    assert response.status_code == 200
    return html(response)


def group_page(client: Client, group: Group, **query: object) -> str:
    response = client.get(f"/p/ours/runs/{group.run_id}/groups/{group.pk}/", query)
    assert response.status_code == 200
    return html(response)


def prompts(page: str) -> list[str]:
    return re.findall(r'<a id="group-\d+" href="[^"]+">([^<]*)</a>', page)


def card(page: str, index: int) -> str:
    match = re.search(rf'<article[^>]*id="sample-{index}".*?</article>', page, re.DOTALL)
    assert match is not None
    return match[0]


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training", sampling={"group_size": 4, "prompts_per_step": 3})


# ---------------------------------------------------------------- the list


def test_the_newest_step_with_squares_and_signal(viewer: Client, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_group(attempt, [1.0, 0.0], step=1, prompt="old")
    add_group(attempt, [1.0, 0.0, None, 1.0], step=2, index=0, prompt="mixed one", advantages=[0.5, -1, 0, 0.5])
    add_group(attempt, [1.0] * 4, step=2, index=1, prompt="all right", signal="all_equal")
    listed = step_groups(run, success=lambda names: "answer")
    assert [(row.squares, row.words) for row in listed.rows] == [
        ((True, False, None, True), ("highest |A|",)),
        ((True,) * 4, ("no signal",)),
    ]
    page = listing(viewer, run)
    assert prompts(page) == ["mixed one", "all right"]
    assert '<i class="right"></i><i class="wrong"></i><i class="masked"></i><i class="right"></i>' in page
    text = words(page)
    assert "showing 2 of 2 groups kept; 3 sampled" in text
    assert "mixed one 0.67 0.50 highest |A|" in text


def test_steps_are_walked(viewer: Client, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    for step in (1, 3, 7):
        add_group(attempt, [1.0, 0.0], step=step, prompt=f"step {step}")
    page = listing(viewer, run, step=3)
    assert prompts(page) == ["step 3"]
    assert 'rel="prev" href="?step=1&amp;show=all"' in page
    assert 'rel="next" href="?step=7&amp;show=all"' in page
    assert prompts(listing(viewer, run, step=5)) == []
    assert 'rel="next"' not in listing(viewer, run)


def test_filters_show_how_many_fit(viewer: Client, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_group(attempt, [1.0, 0.0], index=0, prompt="mixed")
    add_group(attempt, [1.0, 1.0], index=1, prompt="equal", signal="all_equal")
    add_group(attempt, [1.0, None], index=2, prompt="broken", signal="unscored")
    zeroed = add_group(attempt, [0.0, 1.0], index=3, prompt="paid 0 on error")
    sample = zeroed.samples.get(index=0)
    sample.components["answer"]["error"] = "ValueError: no number"
    sample.save()
    page = listing(viewer, run, show="mixed")
    assert prompts(page) == ["mixed", "paid 0 on error"]
    assert "showing 2 of 2 that fit; 4 kept; 3 sampled" in words(page)
    assert "discarded" not in page, "no filter without dynamic sampling"
    assert prompts(listing(viewer, run, show="errors")) == ["broken", "paid 0 on error"]
    assert len(prompts(listing(viewer, run, show="no-such-filter"))) == 4


def test_a_repeated_step_shows_its_newest_attempt_only(viewer: Client, maker: Maker, run: Run) -> None:
    """The first attempt kept two groups of step 2, the second one; step 1 was not repeated."""
    first = maker.attempt(run, state="lost")
    lost = [add_group(first, [1.0, 0.0], step=2, index=index, prompt=f"first {index}") for index in (0, 1)]
    add_group(first, [1.0, 0.0], step=1, prompt="only once")
    second = maker.attempt(run)
    gone_on(second, 1)
    kept = add_group(second, [1.0, 0.0], step=2, index=0, prompt="second 0")
    assert prompts(listing(viewer, run)) == ["second 0"]
    assert prompts(listing(viewer, run, step=1)) == ["only once"]
    assert [group.prompt for group in current_groups(run)] == ["only once", "second 0"], "what the record keeps too"
    assert "is superseded" in words(group_page(viewer, lost[0])), "its address stays good"
    assert "is superseded" not in words(group_page(viewer, kept))


def test_many_groups_come_in_pages_that_cost_the_same(viewer: Client, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    add_group(attempt, [1.0, 0.0], prompt="p0")
    few = queries(lambda: listing(viewer, run))
    for index in range(1, 105):
        add_group(attempt, [1.0, 0.0], index=index, prompt=f"p{index}")
    with CaptureQueriesContext(connection) as many:
        page = listing(viewer, run)
    assert len(many) == few <= 16
    assert "showing 100 of 105 groups kept" in words(page)
    following = re.search(r'href="\?([^"]+)">More groups', page)
    assert following is not None
    rest = html(viewer.get(f"/p/ours/runs/{run.pk}/groups/?{following[1].replace('&amp;', '&')}"))
    assert prompts(rest) == [f"p{index}" for index in range(100, 105)]


def test_discarded_groups_are_marked_and_left_out_of_the_arithmetic(viewer: Client, maker: Maker) -> None:
    run = maker.run(
        state="training",
        algorithm={"dynamic_sampling": {"enabled": True}, "scale": "batch_std"},
        sampling={"group_size": 2, "prompts_per_step": 2},
    )
    attempt = maker.attempt(run)
    trained = add_group(attempt, [1.0, 0.0], step=5, index=0, prompt="trained", advantages=[1, -1], sampled_at=4)
    add_group(attempt, [1.0, 0.0], step=5, index=1, prompt="too", advantages=[1, -1])
    out = add_group(attempt, [1.0, 1.0], step=5, index=2, prompt="left out", signal="all_equal", discarded="all_right")
    text = words(listing(viewer, run))
    assert "3 groups kept, 1 of them discarded; 2 wanted" in text
    assert "left out 1.00 0.50 discarded: all right" in text
    assert "trained 0.50 0.50 sampled at step 4" in text
    assert prompts(listing(viewer, run, show="discarded")) == ["left out"]
    assert "discarded: all right" in words(group_page(viewer, out))
    response = viewer.get(f"/p/ours/runs/{run.pk}/groups/{trained.pk}/")
    assert response.context["whole_step"], "the step of two groups is whole"
    assert "std of the step = 0.5 " in words(html(response))


# ---------------------------------------------------------------- one group


def test_a_group_with_its_arithmetic(viewer: Client, maker: Maker, run: Run) -> None:
    """3 of 8 right: mean 0.375, variance 0.234375, std 0.4841; +0.625/0.4842 = +1.29, −0.375/0.4842 = −0.77."""
    group = add_group(
        maker.attempt(run),
        [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        advantages=[1.29, -0.77, -0.77, 1.29, -0.77, -0.77, 1.29, -0.77],
        step=84,
        index=3,
    )
    page = group_page(viewer, group)
    text = words(page)
    for part in ("what is 49 + 78?", "reference answer 127", "step 84 group 1 of 1"):
        assert part in text
    assert "r = [1, 0, 0, 1, 0, 0, 1, 0] mean = 0.375 std = 0.4841" in text
    assert "A = (r − 0.375) / (0.4841 + 0.0001) → 1 gives +1.29 , 0 gives −0.77" in text
    assert (page.count("<article"), page.count('class="twin"')) == (2, 6), "equal samples are one card"
    first, second = words(card(page, 1)), words(card(page, 2))
    assert "right, reward 1 sample 1 3 × this A +1.29" in first
    assert "passed: format 1 ✓ passed: answer 1 extracted 127 52" in first, "in the order of the run's reward"
    assert "wrong, reward 0 sample 2 5 × this A −0.77" in second
    assert "failed: answer 0 extracted 127 reference 127 52" in second, "what it was compared with"


def test_other_variants_are_one_click_away(viewer: Client, maker: Maker, run: Run) -> None:
    """sample std √(1.875/7) = 0.5175. The only group of three is the batch."""
    group = add_group(maker.attempt(run), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0], advantages=[9.0] * 8)
    page = group_page(viewer, group, variant="group/group_std/1")
    text = words(page)
    assert "1 gives +1.21 , 0 gives −0.72" in text
    assert "The run used: z-score in the group, population std" in text
    assert re.search(r'href="\?variant=group/group_std/1"[^>]*aria-current="true"', page)
    assert "A +9.00" not in text, "the cards show what this variant would have given"
    for variant, missing in (("group/none/0", False), ("group/batch_std/0", True)):
        assert f'href="?variant={variant}"' in page
        assert ("Not all groups" in words(group_page(viewer, group, variant=variant))) is missing


def test_an_estimator_that_rewards_do_not_give_shows_what_was_stored(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"advantage": "gae", "scale": "batch_std"})
    group = add_group(maker.attempt(run), [1.0, 0.0], advantages=[0.123, -0.456])
    page = group_page(viewer, group)
    assert "r = [" not in page
    assert "A +0.12" in words(card(page, 1))
    other = words(group_page(viewer, group, variant="group/none/0"))
    assert "r = [1, 0] mean = 0.5" in other
    assert "The run used: critic and GAE" in other


def test_rewards_after_a_kl_penalty_are_what_is_worked_out(viewer: Client, maker: Maker) -> None:
    """0.9 and 0.3 after the penalty: mean 0.6, A = ±0.3 and not the ±0.5 of the rewards themselves."""
    run = maker.run(
        state="training", algorithm={"advantage": "group", "scale": "none", "kl": {"coef": 0.1, "place": "reward"}}
    )
    attempt = maker.attempt(run)
    group = add_group(attempt, [1.0, 0.0], shaped=[0.9, 0.3], advantages=[0.3, -0.3])
    page = group_page(viewer, group)
    assert "r = [0.9, 0.3] mean = 0.6 A = r − 0.6 → 0.9 gives +0.30 , 0.3 gives −0.30" in words(page)
    first = words(card(page, 1))
    assert ("reward 1 sample 1" in first, "after KL 0.9" in first) == (True, True)
    plain = group_page(viewer, add_group(attempt, [1.0, 0.0], index=1))
    assert "after KL" not in plain


def test_a_masked_sample_says_why(viewer: Client, maker: Maker, run: Run) -> None:
    group = add_group(maker.attempt(run), [1.0, None, 0.0, 0.0], masked={2: "truncated", 3: "importance"})
    page = group_page(viewer, group)
    why = ("no reward", "truncated", "sampler and trainer disagree")
    for index, text in enumerate(why, start=2):
        assert f"masked: {text}" in words(card(page, index))
    assert "ValueError: no number" in words(card(page, 2))
    assert "masked" not in words(card(page, 1))
    assert '<i class="right"></i>' + '<i class="masked"></i>' * 3 in listing(viewer, run)


def test_a_sample_has_an_address_and_neighbours_keep_the_variant(viewer: Client, maker: Maker, run: Run) -> None:
    attempt = maker.attempt(run)
    before, group, after = (add_group(attempt, [1.0, 0.0], index=index) for index in range(3))
    other_step = add_group(attempt, [1.0, 0.0], step=2)
    page = group_page(viewer, group, variant="rloo/none/0", sample=2)
    assert re.findall(r'<article class="panel sample selected" id="sample-(\d)"', page) == ["2"]
    assert f'rel="prev" href="/p/ours/runs/{run.pk}/groups/{before.pk}/?variant=rloo/none/0"' in page
    assert f'rel="next" href="/p/ours/runs/{run.pk}/groups/{after.pk}/?variant=rloo/none/0"' in page
    assert str(other_step.pk) not in re.findall(r"/groups/(\d+)/", page)
    first = group_page(viewer, before, sample="x")
    assert ('rel="prev"' in first, "sample selected" in first) == (False, False)


def test_a_group_of_another_run_is_not_found(viewer: Client, maker: Maker, run: Run) -> None:
    elsewhere = add_group(maker.attempt(maker.run("other", state="training")), [1.0, 0.0])
    assert viewer.get(f"/p/ours/runs/{run.pk}/groups/{elsewhere.pk}/").status_code == 404


@pytest.fixture
def group(maker: Maker, run: Run) -> Group:
    return add_group(maker.attempt(run), [1.0, 1.0, 0.0, 0.0], step=1)


def test_a_reviewer_judges_and_a_viewer_reads(viewer: Client, reviewer: Client, rita: User, group: Group) -> None:
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/judge/"
    assert reviewer.post(address, {"verdict": "wrong", "note": f"no {HOSTILE}"}).status_code == 302
    shown = card(group_page(viewer, group), 1)
    assert ("rita: wrong" in shown, HOSTILE_SHOWN in shown, "<form" in shown) == (True, True, False)
    assert 'aria-pressed="true">Wrong' in card(group_page(reviewer, group), 1)


def test_the_newest_of_a_person_counts_and_nothing_is_overwritten(alice: User, group: Group) -> None:
    sample = group.samples.get(index=0)
    sample_judge(sample=sample, actor=alice, verdict="right")
    sample_judge(sample=sample, actor=alice, verdict="right")  # the same again adds nothing
    sample_judge(sample=sample, actor=alice, verdict="wrong", note="cut short")
    assert list(Annotation.objects.order_by("pk").values_list("verdict", flat=True)) == ["right", "wrong"]
    assert run_figures(group.run)["judged"] == {"right": 0, "wrong": 1, "unsure": 0}
    assert AuditEntry.objects.filter(kind="sample_judged", actor="user:alice").count() == 2
    for statement in ("UPDATE review_annotation SET verdict = 'right'", "DELETE FROM review_annotation"):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_judgement_that_cannot_be_is_refused(admin: Client, alice: User, group: Group) -> None:
    for verdict, note in (("perhaps", ""), ("right", "x" * 2001)):
        with pytest.raises(ValidationError):
            sample_judge(sample=group.samples.get(index=0), actor=alice, verdict=verdict, note=note)
    address = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/samples/0/judge/"
    answer = admin.post(address, {"verdict": "perhaps", "note": "kept"}, headers={"HX-Request": "true"})
    assert answer.status_code == 422
    assert 'value="kept"' in html(answer)
    assert not Annotation.objects.exists()


FIELDS = ("variant", "rewards", "options", "advantages", "parts", "note")


@pytest.mark.parametrize(FIELDS, cases("review/advantages", *FIELDS))
def test_advantages_and_how_they_are_derived(
    variant: str,
    rewards: list[float | None],
    options: dict[str, Any],
    advantages: list[Any] | None,
    parts: list[str] | None,
    note: str | None,
) -> None:
    algorithm = AlgorithmConfig.model_validate({"advantage_eps": options.get("eps", 0.0)})
    step = [GroupScores(options["step"])] if "step" in options else []
    derived = derive(GroupScores(rewards), ALL[variant], algorithm, step=step)
    if advantages is None:
        assert derived is None
        return
    assert derived is not None
    assert [value is None for value in derived.advantages] == [value is None for value in advantages]
    scored = [(reward, value) for reward, value in zip(rewards, derived.advantages, strict=True) if value is not None]
    expected = [value for value in advantages if value is not None]
    assert [value for _, value in scored] == (pytest.approx(expected) if any(expected) else expected)
    assert dict(derived.outcomes) == {number(reward): value for reward, value in scored}
    assert [*derived.parts] == parts
    assert (note in derived.note) if note else derived.note == ""


def test_the_variant_of_a_run_comes_first() -> None:
    """Where rewards do not give the advantages, nothing is derived and a sentence says so."""
    for chosen in (
        {"advantage": "gae", "scale": "batch_std"},
        {"advantage": "pass_at_k", "pass_k": 4},
        {"supervision": "process"},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ):
        algorithm = AlgorithmConfig.model_validate(chosen)
        own, *others = variants_for(algorithm)
        assert ("stored" in stored_only(own, algorithm)) is (chosen.get("advantage") == "gae")
        assert others == VARIANTS
        assert not any(stored_only(variant, algorithm) for variant in others)
    assert variants_for(AlgorithmConfig()) == VARIANTS
    assert VARIANTS[0].value == "group/group_std/0"


def test_numbers_are_short_and_have_a_real_minus() -> None:
    given = (0.2, 1.0, -0.0, -1.5, 0.48412292, 1e-9)
    assert [number(value) for value in given] == ["0.2", "1", "0", "−1.5", "0.4841", "1e−9"]
