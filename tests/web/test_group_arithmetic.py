"""Rewards to advantages, against cases worked by hand."""

import math

import pytest

from cohort.review.arithmetic import (
    BATCH,
    GROUP_POPULATION,
    GROUP_SAMPLE,
    LEAVE_ONE_OUT,
    MEAN_ONLY,
    VARIANTS,
    batch_std,
    number,
    variant_of,
    work_out,
)

SIX_OF_TEN = [1.0] * 6 + [0.0] * 4


def test_six_right_of_ten_as_in_the_paper() -> None:
    """mean 0.6, population std √0.24 = 0.4899: +0.4/0.4899 = +0.82 for right, −0.6/0.4899 = −1.22 for wrong."""
    worked = work_out(SIX_OF_TEN, GROUP_POPULATION, eps=1e-4)
    assert worked is not None
    assert worked.parts == (
        "r = [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]",
        "mean = 0.6",
        "std = √(0.24) = 0.4899",
        "A = (r − 0.6) / (0.4899 + 0.0001)",
    )
    assert [(reward, round(advantage, 2)) for reward, advantage in worked.outcomes] == [("1", 0.82), ("0", -1.22)]
    assert worked.advantages[0] == pytest.approx(0.4 / (math.sqrt(0.24) + 1e-4))
    assert worked.note == ""


def test_sample_std_divides_by_one_less() -> None:
    """variance 2.4 / 9, std 0.5164: right +0.4/0.5164 = 0.7746."""
    worked = work_out(SIX_OF_TEN, GROUP_SAMPLE, eps=0)
    assert worked is not None
    assert worked.advantages[0] == pytest.approx(0.4 / math.sqrt(2.4 / 9))
    assert "std = √(0.2667) = 0.5164" in worked.parts


def test_mean_only_has_no_division() -> None:
    worked = work_out(SIX_OF_TEN, MEAN_ONLY, eps=1e-4)
    assert worked is not None
    assert worked.outcomes == (("1", pytest.approx(0.4)), ("0", pytest.approx(-0.6)))
    assert not any("std" in part for part in worked.parts)


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others() -> None:
    """A right one: the others are 5 of 9 right, 1 − 5/9 = 4/9. A wrong one: 0 − 6/9 = −2/3."""
    worked = work_out(SIX_OF_TEN, LEAVE_ONE_OUT, eps=1e-4)
    assert worked is not None
    assert worked.outcomes == (("1", pytest.approx(4 / 9)), ("0", pytest.approx(-2 / 3)))
    assert "A = r − mean of the other 9" in worked.parts


def test_batch_std_divides_by_that_of_the_step() -> None:
    worked = work_out([1.0, 0.0], BATCH, eps=0, batch_std=0.25)
    assert worked is not None
    assert worked.advantages == (2.0, -2.0)
    assert "std of the step = 0.25" in worked.parts


def test_batch_std_is_not_guessed_from_one_group() -> None:
    assert work_out([1.0, 0.0], BATCH, eps=0) is None


def test_batch_std_of_rewards() -> None:
    assert batch_std([1.0, 0.0, None]) == pytest.approx(0.5)
    assert batch_std([1.0, 0.0], ddof=1) == pytest.approx(math.sqrt(0.5))
    assert batch_std([1.0, None]) is None


@pytest.mark.parametrize("variant", [GROUP_POPULATION, GROUP_SAMPLE, MEAN_ONLY, LEAVE_ONE_OUT])
@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_equal_rewards_give_exactly_nothing(variant: object, eps: float) -> None:
    worked = work_out([0.1] * 7, variant, eps=eps)  # type: ignore[arg-type]
    assert worked is not None
    assert set(worked.advantages) == {0.0}
    assert "no signal" in worked.note


def test_a_sample_without_reward_counts_for_nothing() -> None:
    worked = work_out([1.0, None, 0.0], MEAN_ONLY, eps=0)
    assert worked is not None
    assert worked.advantages == (0.5, None, -0.5)
    assert worked.parts[0] == "r = [1, 0]"
    assert worked.note == "1 sample has no reward and counts for nothing here."


@pytest.mark.parametrize("rewards", [[], [1.0], [1.0, None], [None, None]])
def test_fewer_than_two_rewards_have_no_advantage(rewards: list[float | None]) -> None:
    assert work_out(rewards, GROUP_POPULATION, eps=1e-4) is None


def test_the_variant_of_a_config() -> None:
    assert [
        variant_of("group_std", 0),
        variant_of("group_std", 1),
        variant_of("batch_std", 0),
        variant_of("none", 1),
    ] == [
        GROUP_POPULATION,
        GROUP_SAMPLE,
        BATCH,
        MEAN_ONLY,
    ]
    assert len({variant.id for variant in VARIANTS}) == 5


def test_float_noise_in_equal_rewards_is_no_signal() -> None:
    """0.1 + 0.2 is 0.30000000000000004: the trainer counts these two as equal, and so does what is shown."""
    worked = work_out([0.3, 0.1 + 0.2, None], GROUP_POPULATION, eps=0.0)
    assert worked is not None
    assert worked.advantages == (0.0, 0.0, None)
    assert worked.outcomes == (("0.3", 0.0),)
    assert "no signal" in worked.note
    apart = work_out([0.3, 0.3001], GROUP_POPULATION, eps=0.0)
    assert apart is not None
    assert "no signal" not in apart.note


def test_numbers_are_short_and_have_a_real_minus() -> None:
    assert [number(0.2), number(1.0), number(-0.0), number(-1.5), number(0.48412292), number(1e-9)] == [
        "0.2",
        "1",
        "0",
        "−1.5",
        "0.4841",
        "1e−9",
    ]
