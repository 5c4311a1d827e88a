"""The same problems before and after: counts, differences, intervals, score test, and corrections for several
comparisons. Scores lie in 0 to 1; differences are after − before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.stats.quantiles import Z80, Z95, Z95_ONE_SIDED


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979, Scandinavian Journal of Statistics 6), in the order given: refusing
    adjusted values above α keeps the chance of any false finding in the family at α or less."""
    adjusted = [0.0] * len(p)
    highest = 0.0
    for rank, index in enumerate(_ascending(p)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = highest
    return adjusted


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's step-up adjustment (1995, JRSS B 57), in the order given: taking adjusted values up
    to q keeps the expected share of false findings among those taken at q or less, for independent tests."""
    adjusted = [0.0] * len(p)
    lowest = 1.0
    for rank, index in reversed([*enumerate(_ascending(p), start=1)]):
        lowest = min(lowest, len(p) / rank * p[index])
        adjusted[index] = lowest
    return adjusted


def _ascending(p: Sequence[float]) -> list[int]:
    if not all(0 <= p_value <= 1 for p_value in p):
        raise ValueError("p-values lie between 0 and 1")
    return sorted(range(len(p)), key=lambda index: p[index])


def tango_z(fixed: int, broken: int, n: int, difference: float) -> float:
    """Score statistic of the hypothesis that the true difference (fixed − broken)/n is `difference`, in (−1, 1)
    (Tango 1998, Statistics in Medicine 17: the share of broken ones is estimated under the hypothesis). Infinite
    where the hypothesis leaves no variance."""
    a = 2 * n
    b = -fixed - broken + (2 * n - fixed + broken) * difference
    c = -broken * difference * (1 - difference)
    q = (math.sqrt(b * b - 4 * a * c) - b) / (2 * a)
    distance = fixed - broken - n * difference
    variance = n * (2 * q + difference * (1 - difference))
    if variance > 0:
        return distance / math.sqrt(variance)
    return math.copysign(math.inf, distance) if distance else 0.0


def tango_lower(fixed: int, broken: int, n: int, z: float) -> float:
    """The smallest difference that the test does not refuse at `z`: with z = 1.645 the one-sided 95 % bound. The upper
    bound is −tango_lower(broken, fixed, n, z)."""
    low, high = -1.0, (fixed - broken) / n
    for _ in range(60):
        middle = (low + high) / 2
        if tango_z(fixed, broken, n, middle) > z:
            low = middle
        else:
            high = middle
    return low


EQUAL_TOLERANCE = 1e-4
"""Rewards of a group whose largest and smallest differ by no more than this, relative to their size where that is
above 1, count as equal. Testing the spread and not the standard deviation keeps the noise of a verifier or of floats
from being blown up to full advantages: divided by its own spread, noise of any size is a z-score of 1."""


def nearly_equal(values: Sequence[float]) -> bool:
    """Whether rewards count as equal (`EQUAL_TOLERANCE`), so that there is nothing to learn from them: none do too."""
    highest, lowest = max(values, default=0.0), min(values, default=0.0)
    return highest - lowest <= EQUAL_TOLERANCE * max(1.0, abs(highest), abs(lowest))


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

    @property
    def lower(self) -> float:
        """One-sided 95 % bound: the difference is above this. Tango's of 0/1 scores, because the interval's would take
        a fall of 5 points on 100 problems for excluded in up to 12 % of cases; else of the interval's kind."""
        if self.p_mcnemar is None:
            return self.centre - Z95_ONE_SIDED * self.standard_error
        return tango_lower(self.fixed, self.broken, self.n, Z95_ONE_SIDED)

    @property
    def upper(self) -> float:
        """And this the one that it is below."""
        if self.p_mcnemar is None:
            return self.centre + Z95_ONE_SIDED * self.standard_error
        return -tango_lower(self.broken, self.fixed, self.n, Z95_ONE_SIDED)

    @property
    def units(self) -> int:
        """Independent observations."""
        return self.n

    @property
    def p(self) -> float | None:
        return self.p_mcnemar


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
    return Paired(
        n=n,
        before=math.fsum(before) / n,
        after=math.fsum(after) / n,
        difference=math.fsum(differences) / n,
        low=max(-1.0, centre - Z95 * error),
        high=min(1.0, centre + Z95 * error),
        fixed=fixed,
        broken=broken,
        both_right=sum(a == b == 1 for a, b in zip(before, after, strict=True)),
        both_wrong=sum(a == b == 0 for a, b in zip(before, after, strict=True)),
        p_mcnemar=mcnemar_exact(broken, fixed) if is_binary else None,
        mde=(Z95 + Z80) * math.sqrt(square / (n + 2)),
        centre=centre,
        standard_error=error,
    )


def mcnemar_exact(b: int, c: int) -> float:
    """Exact two-sided p of McNemar's test (1947, Psychometrika 12): the binomial probability, at ½, of a split of the
    b + c discordant pairs at least as uneven as this one."""
    pairs, fewer = b + c, min(b, c)
    ways, term = 0, 1
    for k in range(fewer + 1):
        ways += term
        term = term * (pairs - k) // (k + 1)
    return min(1.0, 2 * ways / (1 << pairs))


def detectable(n: int, discordance: float) -> float:
    """Smallest difference that `n` pairs find with 80 % power at two-sided 95 %, when a share `discordance` of them
    changes at all: (z₀.₉₇₅ + z₀.₈)·√(discordance/n) (Miller 2024, section 5, with σ² of 0/1 pairs). For planning."""
    if n < 1 or not 0 < discordance <= 1:
        raise ValueError(f"detectable needs n of at least 1 and a discordance in (0, 1], not {n} and {discordance}")
    return (Z95 + Z80) * math.sqrt(discordance / n)
