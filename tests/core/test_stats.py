"""Statistics against values worked by hand or published."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats import mcnemar_exact, non_inferiority, paired, verdict, wilson


def table(*, fixed: int, broken: int, both_right: int, both_wrong: int) -> tuple[list[float], list[float]]:
    before = [0.0] * fixed + [1.0] * broken + [1.0] * both_right + [0.0] * both_wrong
    after = [1.0] * fixed + [0.0] * broken + [1.0] * both_right + [0.0] * both_wrong
    return before, after


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
    ("b", "c", "p"),
    [
        (1, 10, 0.01171875),  # 2·(1+11)/2¹¹
        (10, 1, 0.01171875),
        (0, 0, 1.0),
        (5, 5, 1.0),
        (0, 5, 0.0625),  # 2/2⁵
        (0, 6, 0.03125),
        (2, 8, 0.109375),  # 2·(1+10+45)/2¹⁰
    ],
)
def test_mcnemar(b: int, c: int, p: float) -> None:
    assert mcnemar_exact(b, c) == p


def test_mcnemar_with_many_pairs_does_not_overflow() -> None:
    assert 0 < mcnemar_exact(4800, 5200) < 1e-4


def test_paired_counts_and_interval() -> None:
    result = paired(*table(fixed=10, broken=1, both_right=50, both_wrong=39))
    assert (result.n, result.before, result.after) == (100, 0.51, 0.6)
    assert (result.fixed, result.broken, result.both_right, result.both_wrong) == (10, 1, 50, 39)
    assert result.p_mcnemar == 0.01171875
    assert result.difference == pytest.approx(0.09)
    # Agresti–Min by hand: centre 9/102 = .0882353, SE = √((12/102 − .0882353²)/102) = .0328188
    assert result.centre == pytest.approx(0.0882353, abs=1e-7)
    assert result.standard_error == pytest.approx(0.0328188, abs=1e-7)
    assert (result.low, result.high) == pytest.approx((0.0239116, 0.1525590), abs=1e-6)


def test_smallest_visible_difference() -> None:
    # 250 problems, a fifth of them changed: 2.8016·√(51/252)/√252 = 0.0794; the plain form 2.8·√0.2/√250 gives 0.0792.
    assert paired(*table(fixed=25, broken=25, both_right=100, both_wrong=100)).mde == pytest.approx(0.0794, abs=5e-5)


def test_no_change_at_all_is_not_certainty() -> None:
    few = paired(*table(fixed=0, broken=0, both_right=3, both_wrong=2))
    # centre 0, SE = √(1/7/7) = 1/7
    assert (few.low, few.high) == pytest.approx((-0.2799948, 0.2799948), abs=1e-6)
    assert few.p_mcnemar == 1.0
    assert verdict(few, 0.05) == "undecided at margin 5"
    many = paired(*table(fixed=0, broken=0, both_right=500, both_wrong=500))
    assert verdict(many, 0.05) == "no change seen"


def test_graded_scores_have_no_mcnemar() -> None:
    result = paired([0.5, 0.25, 1.0], [0.75, 0.25, 0.5])
    assert result.p_mcnemar is None
    assert (result.fixed, result.broken, result.both_right, result.both_wrong) == (1, 1, 0, 0)
    assert result.difference == pytest.approx(-0.25 / 3)
    # square = (0.0625 + 0.25 + 1)/5 = .2625; centre = −0.25/5 = −.05; SE = √((.2625 − .0025)/5) = √.052
    assert result.standard_error == pytest.approx(math.sqrt(0.052))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=50))
def test_swapping_before_and_after_mirrors(pairs: list[tuple[float, float]]) -> None:
    there = paired([a for a, _ in pairs], [b for _, b in pairs])
    back = paired([b for _, b in pairs], [a for a, _ in pairs])
    assert there.low == pytest.approx(-back.high, abs=1e-12)
    assert (there.fixed, there.broken) == (back.broken, back.fixed)
    assert -1 <= there.low <= there.high <= 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([1], [1, 0], "same problems"),
        ([], [], "at least one"),
        ([1.5], [0], "between 0 and 1"),
        ([math.nan], [0], "between 0 and 1"),
    ],
)
def test_paired_refuses_nonsense(before: list[float], after: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        paired(before, after)


@pytest.mark.parametrize(
    ("fixed", "broken", "n", "outcome", "words"),
    [
        (60, 10, 500, "not_worse", "better"),
        (10, 60, 500, "regressed", "regressed"),  # −10 points, far from 0
        (20, 22, 1000, "not_worse", "no change seen"),
        (10, 12, 100, "undecided", "undecided at margin 5"),
        (5, 30, 2000, "not_worse", "worse within margin 5"),  # −1.25 points, surely, and surely less than 5
    ],
)
def test_verdicts(fixed: int, broken: int, n: int, outcome: str, words: str) -> None:
    result = paired(*table(fixed=fixed, broken=broken, both_right=n // 2, both_wrong=n - n // 2 - fixed - broken))
    assert non_inferiority(result, 0.05) == outcome
    assert verdict(result, 0.05) == words
