"""Statistics of evaluations: intervals and paired comparisons on the same problems. Plain Python, no torch, no numpy.

Used alike by the trainer, the web pages and the offline check of a card, so that all three give the same numbers.
Scores lie in 0 to 1; differences are after − before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Z95 = 1.959963984540054
"""97.5 % point of the normal distribution: two-sided 95 %."""
Z95_ONE_SIDED = 1.6448536269514722
"""95 % point: one-sided 95 %."""
_Z80 = 0.8416212335729143
"""80 % point: the power that `Paired.mde` asks for."""

EQUAL_TOLERANCE = 1e-6
"""Rewards of a group whose largest and smallest differ by no more than this, relative to their size where that is
above 1, count as equal. Testing the spread and not the standard deviation keeps float noise in equal rewards from
being blown up by a tiny eps."""

NonInferiority = Literal["regressed", "not_worse", "undecided"]


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Paired:
    """The same problems before and after."""

    n: int
    before: float
    """Mean score."""
    after: float
    difference: float
    """after − before."""
    low: float
    """95 % interval of the difference."""
    high: float
    fixed: int
    """Problems that scored higher after (with 0/1 scores: wrong, then right)."""
    broken: int
    """Problems that scored lower after (right, then wrong)."""
    both_right: int
    """Problems with score 1 both times."""
    both_wrong: int
    """Problems with score 0 both times."""
    p_mcnemar: float | None
    """Exact two-sided McNemar p; None when scores are not all 0 or 1."""
    mde: float
    """Smallest difference that this comparison would find with 80 % power; a smaller one may be there unseen."""
    centre: float
    """Middle of the interval, a little nearer to 0 than the difference."""
    standard_error: float


def nearly_equal(values: Sequence[float]) -> bool:
    """Whether rewards count as equal (`EQUAL_TOLERANCE`), so that there is nothing to learn from them."""
    highest, lowest = max(values), min(values)
    return highest - lowest <= EQUAL_TOLERANCE * max(1.0, abs(highest), abs(lowest))


def wilson(successes: float, n: int, z: float = Z95) -> Interval:
    """Wilson score interval of a proportion (Wilson 1927); `successes` may be a sum of scores between 0 and 1."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"wilson needs n of at least 1 and 0 to n successes, not {successes} of {n}")
    p = successes / n
    spread = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / spread
    half = z / spread * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(
        low=0.0 if successes == 0 else max(0.0, centre - half), high=1.0 if successes == n else min(1.0, centre + half)
    )


def paired(before: Sequence[float], after: Sequence[float]) -> Paired:
    """Compare scores of the same problems, in the same order.

    The interval is Agresti and Min's adjusted Wald interval for matched proportions (2005, Statistics in Medicine
    24): half an observation is added to each cell of the 2×2 table, so that no change on few problems does not look
    like certainty. For scores between 0 and 1 the same pseudo-observations (½ at +1, ½ at −1, 1 at 0) are added,
    which widens the interval. `mde` is (z₀.₉₇₅ + z₀.₈)·σ/√n with σ from the same adjusted counts (Miller 2024,
    "Adding Error Bars to Evals", section 5).
    """
    n = len(before)
    if n != len(after):
        raise ValueError(f"paired scores must be of the same problems: {n} before, {len(after)} after")
    if n == 0:
        raise ValueError("paired needs at least one problem")
    if not all(0 <= score <= 1 for score in (*before, *after)):
        raise ValueError("scores must lie between 0 and 1")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    centre = math.fsum(differences) / (n + 2)
    square = (math.fsum(d * d for d in differences) + 1) / (n + 2)
    error = math.sqrt((square - centre * centre) / (n + 2))
    fixed, broken = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    is_binary = all(score in (0, 1) for score in (*before, *after))
    mean_before, mean_after = math.fsum(before) / n, math.fsum(after) / n
    return Paired(
        n=n,
        before=mean_before,
        after=mean_after,
        difference=math.fsum(differences) / n,
        low=max(-1.0, centre - Z95 * error),
        high=min(1.0, centre + Z95 * error),
        fixed=fixed,
        broken=broken,
        both_right=sum(a == b == 1 for a, b in zip(before, after, strict=True)),
        both_wrong=sum(a == b == 0 for a, b in zip(before, after, strict=True)),
        p_mcnemar=mcnemar_exact(broken, fixed) if is_binary else None,
        mde=(Z95 + _Z80) * math.sqrt(square / (n + 2)),
        centre=centre,
        standard_error=error,
    )


def mcnemar_exact(b: int, c: int) -> float:
    """Exact two-sided p of McNemar's test (1947): the binomial probability, at ½, of a split of the b + c discordant
    pairs at least as uneven as this one."""
    pairs, fewer = b + c, min(b, c)
    ways, term = 0, 1
    for k in range(fewer + 1):
        ways += term
        term = term * (pairs - k) // (k + 1)
    return min(1.0, 2 * ways / (1 << pairs))


def non_inferiority(result: Paired, margin: float) -> NonInferiority:
    """Did it get worse by more than `margin` (fixed beforehand)? One-sided 95 % bounds of the difference.

    not_worse: a fall of `margin` or more is excluded. regressed: a fall is shown and `margin` is not excluded.
    undecided: the data show neither; more problems are needed.
    """
    reach = Z95_ONE_SIDED * result.standard_error
    if result.centre - reach > -margin:
        return "not_worse"
    return "regressed" if result.centre + reach < 0 else "undecided"


def verdict(result: Paired, margin: float) -> str:
    """The comparison in words: better, regressed, worse within margin …, no change seen, undecided at margin ….

    better and regressed need a 95 % interval without 0; "no change seen" needs in addition that a fall by the margin
    is excluded, so that few problems do not read as safety.
    """
    points = f"{100 * margin:g}"
    if result.low > 0:
        return "better"
    match non_inferiority(result, margin):
        case "regressed":
            return "regressed"
        case "not_worse":
            return f"worse within margin {points}" if result.high < 0 else "no change seen"
        case "undecided":
            return f"undecided at margin {points}"
