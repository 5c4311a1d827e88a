"""Shares, quantiles and adjusted p-values against published tables and examples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats.paired import benjamini_hochberg, holm
from grpo_core.stats.quantiles import none_of, student_p, student_t, wilson
from tests.tables import cases


@pytest.mark.parametrize(("successes", "n", "low", "high"), cases("stats/wilson", "successes", "n", "low", "high"))
def test_wilson(successes, n, low, high):
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(case):
    successes, n = case
    interval, mirrored = wilson(successes, n), wilson(n - successes, n)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "share"),
    [(1, 0.95), (10, 0.2589), (30, 0.0950), (100, 0.0295), (300, 0.00994)],  # 1 − 0.05^(1/n); Hanley 1983: 3/30 = 0.1
)
def test_none_of(n, share):
    assert none_of(n) == pytest.approx(share, abs=5e-5)
    assert none_of(n) < 3 / n


@pytest.mark.parametrize(
    ("degrees", "two_sided_95", "one_sided_95", "one_sided_80"),
    cases("stats/student_t", "degrees", "two_sided_95", "one_sided_95", "one_sided_80"),
)
def test_students_t(degrees, two_sided_95, one_sided_95, one_sided_80):
    """From the tables of Student's t (NIST/SEMATECH handbook, 1.3.6.7.2)."""
    quantiles = [student_t(share, degrees) for share in (0.975, 0.95, 0.8)]
    assert quantiles == pytest.approx((two_sided_95, one_sided_95, one_sided_80), abs=5.1e-4)


def test_series_and_expansion_of_t_meet_and_p_of_one_and_two_degrees_is_in_closed_form():
    """200 degrees go by the series, 201 by the expansion; both are inverted by the same p."""
    for t in (0.0, 0.5, 2.0, 40.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi)
        assert student_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    for degrees in (199, 200, 201, 202, 5000):
        for share in (0.8, 0.95, 0.975):
            assert student_p(student_t(share, degrees), degrees) == pytest.approx(2 * (1 - share), abs=1e-9)


def test_what_is_no_number_of_problems_is_refused():
    for successes, n in ((1, 0), (-1, 5), (6, 5)):
        with pytest.raises(ValueError, match="wilson needs"):
            wilson(successes, n)
    for refused in (lambda: none_of(0), lambda: student_t(0.95, 0), lambda: student_t(0.9, 5)):
        with pytest.raises(ValueError):
            refused()


# ---------------------------------------------------------------------- families of tests


def test_holm_by_hand():
    """0.01·4, 0.02·3 = 0.06, then 0.03·2 = 0.06, then max(0.06, 0.04): the steps never go down."""
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_benjamini_and_hochbergs_own_example():
    """The 15 p-values of their paper (1995, section 3.3): 4 are taken at q 0.05, Holm takes 3."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590]
    p.append(1.0)
    adjusted = benjamini_hochberg(p)
    assert [value <= 0.05 for value in adjusted].count(True) == 4
    assert adjusted[:4] == pytest.approx([0.0015, 0.0030, 0.0095, 0.035625])  # 15/i·p
    assert adjusted[4] == pytest.approx(0.0603)
    assert [value <= 0.05 for value in holm(p)].count(True) == 3


@given(st.lists(st.floats(0, 1), max_size=20))
def test_adjusting_keeps_order_and_does_not_depend_on_it(p):
    for adjust in (holm, benjamini_hochberg):
        adjusted = adjust(p)
        assert all(raw - 1e-15 <= value <= 1 for value, raw in zip(adjusted, p, strict=True))
        assert [value for _, value in sorted(zip(p, adjusted, strict=True))] == sorted(adjusted)
        assert adjust(p[::-1]) == pytest.approx(adjusted[::-1])
        with pytest.raises(ValueError, match="between 0 and 1"):
            adjust([*p, 1.5])
    assert all(strict >= loose - 1e-12 for strict, loose in zip(holm(p), benjamini_hochberg(p), strict=True))
