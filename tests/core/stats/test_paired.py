"""Matched pairs against values worked by hand or published."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats.paired import detectable, mcnemar_exact, paired, tango_lower, tango_z
from grpo_core.stats.quantiles import Z95


def table(*, fixed, broken, both_right, both_wrong):
    before = [0.0] * fixed + [1.0] * broken + [1.0] * both_right + [0.0] * both_wrong
    after = [1.0] * fixed + [0.0] * broken + [1.0] * both_right + [0.0] * both_wrong
    return before, after


def test_mcnemar():
    """2·(1+11)/2¹¹, 2/2⁵, 2/2⁶, 2·(1+10+45)/2¹⁰; and many pairs do not overflow."""
    for b, c, p in ((1, 10, 0.01171875), (0, 0, 1), (5, 5, 1), (0, 5, 0.0625), (0, 6, 0.03125), (2, 8, 0.109375)):
        assert mcnemar_exact(b, c) == mcnemar_exact(c, b) == p
    assert 0 < mcnemar_exact(4800, 5200) < 1e-4


def test_paired_counts_and_interval():
    result = paired(*table(fixed=10, broken=1, both_right=50, both_wrong=39))
    assert (result.n, result.before, result.after) == (100, 0.51, 0.6)
    assert (result.fixed, result.broken, result.both_right, result.both_wrong) == (10, 1, 50, 39)
    assert result.p_mcnemar == 0.01171875
    assert result.difference == pytest.approx(0.09)
    # Agresti–Min by hand: centre 9/102 = .0882353, SE = √((12/102 − .0882353²)/102) = .0328188
    assert result.centre == pytest.approx(0.0882353, abs=1e-7)
    assert result.standard_error == pytest.approx(0.0328188, abs=1e-7)
    assert (result.low, result.high) == pytest.approx((0.0239116, 0.1525590), abs=1e-6)


def test_no_change_at_all_is_not_certainty():
    few = paired(*table(fixed=0, broken=0, both_right=3, both_wrong=2))
    # centre 0, SE = √(1/7/7) = 1/7
    assert (few.low, few.high) == pytest.approx((-0.2799948, 0.2799948), abs=1e-6)
    assert few.p_mcnemar == 1.0


def test_graded_scores_have_no_mcnemar():
    result = paired([0.5, 0.25, 1.0], [0.75, 0.25, 0.5])
    assert result.p_mcnemar is None
    assert (result.fixed, result.broken, result.both_right, result.both_wrong) == (1, 1, 0, 0)
    assert result.difference == pytest.approx(-0.25 / 3)
    # square = (0.0625 + 0.25 + 1)/5 = .2625; centre = −0.25/5 = −.05; SE = √((.2625 − .0025)/5) = √.052
    assert result.standard_error == pytest.approx(math.sqrt(0.052))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=50))
def test_swapping_before_and_after_mirrors(pairs):
    there = paired([a for a, _ in pairs], [b for _, b in pairs])
    back = paired([b for _, b in pairs], [a for a, _ in pairs])
    assert there.low == pytest.approx(-back.high, abs=1e-12)
    assert (there.fixed, there.broken) == (back.broken, back.fixed)
    assert -1 <= there.low <= there.high <= 1


def test_detectable_differences_seen_and_planned():
    # 250 problems, a fifth of them changed: 2.8016·√(51/252)/√252 = 0.0794; the plain form 2.8·√0.2/√250 gives 0.0792.
    assert paired(*table(fixed=25, broken=25, both_right=100, both_wrong=100)).mde == pytest.approx(0.0794, abs=5e-5)
    # 2.801585·√(0.2/250) = 0.07924, 2.801585·√(0.1/1319) = 0.02439
    assert detectable(250, 0.2) == pytest.approx(0.07924, abs=5e-6)
    assert detectable(1319, 0.1) == pytest.approx(0.02439, abs=5e-6)
    for before, after in (([1], [1, 0]), ([], []), ([1.5], [0]), ([math.nan], [0])):
        with pytest.raises(ValueError):
            paired(before, after)
    for n, discordance in ((0, 0.2), (10, 0.0), (10, 1.5)):
        with pytest.raises(ValueError, match="detectable needs"):
            detectable(n, discordance)


def test_tango_by_hand():
    # With no discordant pair the bound has a closed form: −z²/(n + z²); 54 pairs: −3.8415/57.8415 = −0.0664.
    assert tango_lower(0, 0, 54, Z95) == pytest.approx(-0.06641, abs=5e-6)
    assert tango_lower(0, 0, 1000, 1.6448536) == pytest.approx(-2.7055434 / 1002.7055434, abs=1e-9)
    # At no difference it is McNemar's statistic.
    assert tango_z(30, 12, 500, 0.0) == pytest.approx((30 - 12) / math.sqrt(30 + 12))
    assert tango_z(0, 0, 10, 0.0) == 0
    # none fixed, 2 broken of 100, δ −0.05: A = 200, B = −2 + 202·(−0.05) = −12.1, C = −2·(−0.05)·1.05 = 0.105
    # q = (√(146.41 − 84) + 12.1)/400 = 0.05; variance 100·(0.1 − 0.0525) = 4.75; z = (−2 + 5)/√4.75 = 1.3765
    assert tango_z(0, 2, 100, -0.05) == pytest.approx(1.37649, abs=5e-6)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60))
def test_tango_bound_is_where_the_test_turns(fixed, broken, same):
    n = fixed + broken + same + 1
    bound = tango_lower(fixed, broken, n, Z95)
    assert -1 <= bound <= (fixed - broken) / n
    if bound > -1 + 1e-9:
        assert tango_z(fixed, broken, n, bound - 1e-9) >= Z95 - 1e-6
        assert tango_z(fixed, broken, n, bound + 1e-9) <= Z95 + 1e-6
