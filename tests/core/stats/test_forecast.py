"""The forecast of informative groups: by hand, in its limits, and against simulated problems."""

import random
from collections import Counter

import pytest

from grpo_core.stats.forecast import GROUP_SIZES, informative


def test_by_hand_with_equal_problems_and_with_two_kinds():
    """Every problem half right with no more spread than chance gives (ρ 0): 1 − 2·0.5^G. Each always or never right
    (ρ 1): none."""
    even = informative({0.25: 25, 0.5: 50, 0.75: 25}, samples=4, group=4)
    assert even.share == pytest.approx(1 - 2 * 0.5**4)
    assert informative({0.0: 50, 1.0: 50}, samples=4, group=64).share == pytest.approx(0)


def test_uniform_chances_are_a_beta_of_1_and_1():
    """E[p^G] is 1/(G + 1): the shares of n = 4 completions are then uniform over 0, ¼ … 1."""
    uniform = dict.fromkeys((0.0, 0.25, 0.5, 0.75, 1.0), 20000)
    for group in GROUP_SIZES:
        forecast = informative(uniform, samples=4, group=group)
        assert forecast.share == pytest.approx(1 - 2 / (group + 1), abs=2e-4)
        assert forecast.low < forecast.share < forecast.high


def test_one_completion_a_problem_bounds_and_does_not_forecast():
    forecast = informative({0.0: 90, 1.0: 10}, samples=1, group=8)
    assert (forecast.share, forecast.low) == (None, 0.0)
    assert 1 - 0.9**8 - 0.1**8 < forecast.high < 0.9


@pytest.mark.parametrize("counts", [{0.0: 200}, {1.0: 200}])
def test_nothing_right_or_nothing_wrong_is_no_certainty(counts):
    forecast = informative(counts, samples=4, group=8)
    assert (forecast.share, forecast.low) == (0.0, 0.0)
    assert 0.1 < forecast.high < 0.2
    with pytest.raises(ValueError, match="at least one problem"):
        informative({}, samples=4, group=8)


@pytest.mark.parametrize(("a", "b"), [(0.5, 2.0), (2.0, 2.0), (0.3, 0.3)])
def test_the_interval_covers(a, b):
    """100 problems × 8 completions, 200 times: the truth lies in at least 88 % of the intervals, by the exact law."""
    drawn, group, covered = random.Random(7), 16, 0
    truth = 1.0
    for first, other in ((a, b), (b, a)):
        product = 1.0
        for i in range(group):
            product *= (first + i) / (first + other + i)
        truth -= product
    for _ in range(200):
        chances = [drawn.betavariate(a, b) for _ in range(100)]
        counts = Counter(sum(drawn.random() < chance for _ in range(8)) / 8 for chance in chances)
        forecast = informative(counts, samples=8, group=group)
        covered += forecast.low <= truth <= forecast.high
    assert covered >= 176
