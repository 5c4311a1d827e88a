"""The same problems before and after: counts, differences, intervals, score test, and corrections for several
comparisons. Scores lie in 0 to 1; differences are after − before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.stats.inferiority import needed_units
from grpo_core.stats.quantiles import Z80, Z95


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
    """The same problems before and after, all scores 0 or 1."""

    n: int
    difference: float
    """after − before."""
    low: float
    """95 % interval of the difference."""
    high: float
    fixed: int
    """Problems that were wrong, then right."""
    broken: int
    """Problems that were right, then wrong."""
    p: float
    """Exact two-sided McNemar p."""
    mde: float
    """Smallest difference that this comparison would find with 80 % power; a smaller one may be there unseen."""
    noun: str = "items"

    @property
    def units(self) -> int:
        """Independent observations."""
        return self.n

    def units_needed(self, threshold: float) -> int | None:
        """The score statistic of `threshold` grows exactly with the root of n where the shares that changed stay."""
        return needed_units(tango_z(self.fixed, self.broken, self.n, threshold), self.n, Z95 + Z80)


def paired(fixed: int, broken: int, n: int) -> Paired:
    """Compare `n` problems of which `fixed` were right only after, and `broken` only before.

    The interval is Tango's (1998, Statistics in Medicine 17): every difference that its score test does not refuse at
    5 %, and 0 as long as the exact McNemar test does not refuse it (with few changes that test is the stricter one).
    So the interval is without 0 just where `p` is 5 % at most. Agresti and Min's (2005), simpler, would at 100
    problems of which 5 change have excluded a true fall of 5 points in up to 12 % of cases. `mde` is
    (z₀.₉₇₅ + z₀.₈)·σ/√n with σ from counts with half an observation added to each cell (Miller 2024, "Adding Error
    Bars to Evals", section 5), so that it is not 0 where nothing changed.
    """
    if n < 1 or fixed < 0 or broken < 0 or fixed + broken > n:
        raise ValueError(f"paired needs counts within at least one problem, not {fixed} and {broken} of {n}")
    p = mcnemar_exact(broken, fixed)
    low, high = tango_lower(fixed, broken, n, Z95), -tango_lower(broken, fixed, n, Z95)
    if p > 0.05:
        low, high = min(low, 0.0), max(high, 0.0)
    return Paired(
        n=n,
        difference=(fixed - broken) / n,
        low=low,
        high=high,
        fixed=fixed,
        broken=broken,
        p=p,
        mde=(Z95 + Z80) * math.sqrt((fixed + broken + 1) / (n + 2) / (n + 2)),
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
