"""Shares and quantiles against published tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats import none_of, student_p, student_t, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 100, 0.0, 0.0370),  # z²/(n+z²) = 3.8415/103.8415
        (100, 100, 0.9630, 1.0),
        (50, 100, 0.4038, 0.5962),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson(successes: float, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(case: tuple[int, int]) -> None:
    successes, n = case
    interval, mirrored = wilson(successes, n), wilson(n - successes, n)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_nonsense(successes: float, n: int) -> None:
    with pytest.raises(ValueError, match="wilson needs"):
        wilson(successes, n)


@pytest.mark.parametrize(
    ("n", "share"),
    [(1, 0.95), (10, 0.2589), (30, 0.0950), (100, 0.0295), (300, 0.00994)],  # 1 − 0.05^(1/n); Hanley 1983: 3/30 = 0.1
)
def test_none_of(n: int, share: float) -> None:
    assert none_of(n) == pytest.approx(share, abs=5e-5)
    assert none_of(n) < 3 / n


def test_none_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        none_of(0)


# Two-sided 95 %, one-sided 95 % and 80 % points, from the tables of Student's t (NIST/SEMATECH handbook, 1.3.6.7.2).
TABLE = {
    1: (12.706, 6.314, 1.376),
    2: (4.303, 2.920, 1.061),
    3: (3.182, 2.353, 0.978),
    4: (2.776, 2.132, 0.941),
    5: (2.571, 2.015, 0.920),
    9: (2.262, 1.833, 0.883),
    10: (2.228, 1.812, 0.879),
    19: (2.093, 1.729, 0.861),
    30: (2.042, 1.697, 0.854),
    40: (2.021, 1.684, 0.851),
    60: (2.000, 1.671, 0.848),
    120: (1.980, 1.658, 0.845),
    1000: (1.962, 1.646, 0.842),
}


@pytest.mark.parametrize("degrees", TABLE)
def test_students_t(degrees: int) -> None:
    found = [student_t(share, degrees) for share in (0.975, 0.95, 0.8)]
    assert found == pytest.approx(TABLE[degrees], abs=5.1e-4)


def test_series_and_expansion_of_t_meet() -> None:
    """200 degrees go by the series, 201 by the expansion; both are inverted by the same p."""
    for degrees in (199, 200, 201, 202, 5000):
        for share in (0.8, 0.95, 0.975):
            assert student_p(student_t(share, degrees), degrees) == pytest.approx(2 * (1 - share), abs=1e-9)


def test_p_of_one_and_two_degrees_in_closed_form() -> None:
    for t in (0.0, 0.5, 2.0, 40.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi)
        assert student_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_t_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="at least 1 degree"):
        student_t(0.95, 0)
    with pytest.raises(ValueError, match=r"knows the shares 0\.975, 0\.95, 0\.8"):
        student_t(0.9, 5)
