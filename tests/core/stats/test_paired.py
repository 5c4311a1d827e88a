"""Matched pairs against values worked by hand or published."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats.paired import detectable, mcnemar_exact, paired, tango_lower, tango_z
from grpo_core.stats.quantiles import Z95


def test_mcnemar():
    """2·(1+11)/2¹¹, 2/2⁵, 2/2⁶, 2·(1+10+45)/2¹⁰; and many pairs do not overflow."""
    for b, c, p in ((1, 10, 0.01171875), (0, 0, 1), (5, 5, 1), (0, 5, 0.0625), (0, 6, 0.03125), (2, 8, 0.109375)):
        assert mcnemar_exact(b, c) == mcnemar_exact(c, b) == p
    assert 0 < mcnemar_exact(4800, 5200) < 1e-4


def test_paired_counts_and_interval():
    result = paired(10, 1, 100)
    assert (result.n, result.units, result.fixed, result.broken) == (100, 100, 10, 1)
    assert result.p == 0.01171875
    assert result.difference == pytest.approx(0.09)
    # The ends are where Tango's statistic is 1.96, each way.
    assert tango_z(10, 1, 100, result.low) == pytest.approx(Z95, abs=1e-6)
    assert tango_z(10, 1, 100, result.high) == pytest.approx(-Z95, abs=1e-6)


def test_a_published_interval():
    """Fagerland, Lydersen and Laake 2014 (Statistics in Medicine 33), airway hyper-responsiveness, 1 and 7 of 21
    children changed: Tango's interval is −0.517 to −0.026. The exact p is 0.0703, so that ours reaches to 0."""
    assert tango_lower(1, 7, 21, Z95) == pytest.approx(-0.517, abs=5e-4)
    assert -tango_lower(7, 1, 21, Z95) == pytest.approx(-0.026, abs=5e-4)
    assert (paired(1, 7, 21).low, paired(1, 7, 21).high) == (pytest.approx(-0.517, abs=5e-4), 0.0)


def test_no_change_at_all_is_not_certainty():
    few = paired(0, 0, 5)
    # −z²/(n + z²) = −3.8415/8.8415
    assert (few.low, few.high) == pytest.approx((-0.4344829, 0.4344829), abs=1e-6)
    assert few.p == 1.0


def test_what_the_exact_test_does_not_refuse_is_in_the_interval():
    """5 of 5 fixed has p 0.0625, though the score statistic is √5: the interval ends at 0."""
    assert tango_lower(5, 0, 5, Z95) > 0
    assert (paired(5, 0, 5).low, paired(5, 0, 5).p) == (0.0, 0.0625)
    assert paired(6, 0, 6).low > 0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_swapping_before_and_after_mirrors(fixed, broken, same):
    there, back = paired(fixed, broken, fixed + broken + same), paired(broken, fixed, fixed + broken + same)
    assert there.low == pytest.approx(-back.high, abs=1e-12)
    assert -1 <= there.low <= there.high <= 1


def test_detectable_differences_seen_and_planned():
    # 250 problems, a fifth of them changed: 2.8016·√(51/252)/√252 = 0.0794; the plain form 2.8·√0.2/√250 gives 0.0792.
    assert paired(25, 25, 250).mde == pytest.approx(0.0794, abs=5e-5)
    # 2.801585·√(0.2/250) = 0.07924, 2.801585·√(0.1/1319) = 0.02439
    assert detectable(250, 0.2) == pytest.approx(0.07924, abs=5e-6)
    assert detectable(1319, 0.1) == pytest.approx(0.02439, abs=5e-6)
    for fixed, broken, n in ((0, 0, 0), (2, 2, 3), (-1, 0, 5)):
        with pytest.raises(ValueError, match="paired needs"):
            paired(fixed, broken, n)
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
