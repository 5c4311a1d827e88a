"""Best-of-n: expectations against the mean over all draws, and where curves part against cases worked by hand."""

import math
from fractions import Fraction
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats.best_of import curves, expected_best, kl_of_best, sizes
from tests.tables import cases

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=7)
"""Few values, so that many are equal."""


def enumerated(scores, values, n):
    """The mean over all draws of n of the samples; over all samples of a draw that share its highest score."""
    draws = list(combinations(range(len(scores)), n))
    total = Fraction(0)
    for draw in draws:
        best = [index for index in draw if scores[index] == max(scores[index] for index in draw)]
        total += sum(Fraction(values[index]) for index in best) / len(best)
    return total / len(draws)


@given(SCORES.flatmap(lambda scores: st.tuples(st.just(scores), st.permutations(list(range(len(scores)))))))
def test_the_expected_best_is_the_mean_over_all_draws(case):
    scores, values = case
    for n in range(1, len(scores) + 1):
        assert expected_best(scores, values, n) == pytest.approx(float(enumerated(scores, values, n)), abs=1e-12)
        assert expected_best(scores, scores, n) == pytest.approx(float(enumerated(scores, scores, n)), abs=1e-12)


def test_the_order_of_samples_changes_nothing():
    scores, values = [2.0, 1.0, 2.0, 0.5], [0.0, 1.0, 1.0, 0.25]
    for order in permutations(range(4)):
        mixed = [scores[index] for index in order], [values[index] for index in order]
        assert expected_best(*mixed, 2) == pytest.approx(expected_best(scores, values, 2), abs=1e-15)


def test_closed_forms():
    # The best of n of 1 … N is n(N + 1)/(n + 1) in the mean.
    uniform = [float(value) for value in range(1, 101)]
    for n in (1, 2, 7, 64, 100):
        assert expected_best(uniform, uniform, n) == pytest.approx(n * 101 / (n + 1))
        assert expected_best(uniform, [-value for value in uniform], n) == pytest.approx(-n * 101 / (n + 1))
    # Equal scores choose nothing: the mean, whatever n is.
    assert expected_best([3.0] * 5, [1, 0, 0, 0, 0], 4) == pytest.approx(0.2)
    # c of N right, separated by the score: pass@n of Chen et al. 2021, 1 − C(N − c, n)/C(N, n).
    right = [1.0] * 3 + [0.0] * 7
    assert expected_best(right, right, 4) == pytest.approx(1 - math.comb(7, 4) / math.comb(10, 4))
    assert kl_of_best(1) == 0
    assert kl_of_best(2) == pytest.approx(math.log(2) - 0.5)
    assert kl_of_best(1024) == pytest.approx(10 * math.log(2) - 1023 / 1024)


def test_sizes_double_up_to_all_samples():
    assert sizes(1) == [1]
    assert sizes(2) == [1, 2]
    assert sizes(6) == [1, 2, 4, 6]
    assert sizes(64) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("n", [0, 4])
def test_no_more_than_there_are(n):
    with pytest.raises(ValueError, match="best of"):
        expected_best([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], n)


@pytest.mark.parametrize(("rewards", "verifiers"), [([], []), ([[]], [[]]), ([[1.0]], [[1.0, 2.0]]), ([[1.0]], [])])
def test_what_is_no_table_of_samples_is_refused(rewards, verifiers):
    with pytest.raises(ValueError, match=r"no curves|no samples"):
        curves(rewards, verifiers)


def test_the_shortest_problem_is_how_far_n_reaches():
    assert curves([[1, 2, 3, 4, 5], [1, 2, 3]], [[1, 2, 3, 4, 5], [1, 2, 3]]).sizes == (1, 2, 3)


def test_points_are_means_over_problems_with_their_intervals():
    (one, two) = curves([[0, 1], [2, 4]], [[1, 0], [1, 0]]).points(seed=0)
    assert (one.n, one.kl, one.reward.mean, one.verifier.mean) == (1, 0, (0.5 + 3) / 2, 0.5)
    assert (two.n, two.reward.mean, two.verifier.mean) == (2, (1 + 4) / 2, 0)
    # Of two problems a resample holds either twice with chance ¼, so the 95 % interval reaches from one to the other.
    assert (two.reward.low, two.reward.high) == (1, 4)
    assert (two.verifier.low, two.verifier.high) == (0, 0)


FIELDS = ("by_rank", "problems", "outcome", "n", "peak")


@pytest.mark.parametrize(FIELDS, cases("stats/parting", *FIELDS))
def test_where_they_part(by_rank, problems, outcome, n, peak):
    """`by_rank`: the verifier's scores of a problem's samples, the sample that is rewarded least first. Problems in
    turn."""
    verifiers = [by_rank[index % len(by_rank)] for index in range(problems)]
    rewards = [[float(rank) for rank in range(len(row))] for row in verifiers]
    parting = curves(rewards, verifiers).parting(seed=0)
    assert (parting.outcome, parting.n, parting.peak) == (outcome, n, peak)
    assert parting == curves(rewards, verifiers).parting(seed=0)


def test_a_reward_that_is_the_verifier_never_parts_from_it():
    verifiers = [[float((3 * index + sample) % 8 == 0) for sample in range(8)] for index in range(12)]
    parting = curves(verifiers, verifiers).parting(seed=0)
    assert (parting.outcome, parting.n) == ("together", None)
    assert parting.verifier == parting.reward


def test_a_reward_that_does_not_rise_optimises_nothing():
    parting = curves([[1.0] * 8] * 10, [[0.0] * 4 + [1.0] * 4] * 10).parting(seed=0)
    assert (parting.outcome, parting.n) == ("no_rise", None)


def test_what_falls_says_by_how_much_from_the_peak():
    """Two samples of four are right, and they are rewarded less than a third, which is wrong and always wins."""
    parting = curves([[0, 1, 1, 2]] * 10, [[0, 1, 1, 0]] * 10).parting(seed=0)
    # n = 1: ½. n = 2: of 6 draws 3 hold the last sample and are lost, 3 hold a right one: ½. n = 4: 0.
    assert (parting.outcome, parting.n, parting.peak) == ("falls", 4, 1)
    assert parting.verifier is not None
    assert (parting.verifier.mean, parting.verifier.low, parting.verifier.high) == (-0.5, -0.5, -0.5)
    assert parting.reward is not None
    assert parting.reward.mean == pytest.approx(1.0)
