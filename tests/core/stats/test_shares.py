"""Shares and quantiles against published tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats import none_of, student_p, student_t, wilson
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


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_nonsense(successes, n):
    with pytest.raises(ValueError, match="wilson needs"):
        wilson(successes, n)


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
    found = [student_t(share, degrees) for share in (0.975, 0.95, 0.8)]
    assert found == pytest.approx((two_sided_95, one_sided_95, one_sided_80), abs=5.1e-4)


def test_series_and_expansion_of_t_meet():
    """200 degrees go by the series, 201 by the expansion; both are inverted by the same p."""
    for degrees in (199, 200, 201, 202, 5000):
        for share in (0.8, 0.95, 0.975):
            assert student_p(student_t(share, degrees), degrees) == pytest.approx(2 * (1 - share), abs=1e-9)


def test_p_of_one_and_two_degrees_in_closed_form():
    for t in (0.0, 0.5, 2.0, 40.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi)
        assert student_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_what_is_no_number_of_problems_is_refused():
    for refused in (lambda: none_of(0), lambda: student_t(0.95, 0), lambda: student_t(0.9, 5)):
        with pytest.raises(ValueError):
            refused()
