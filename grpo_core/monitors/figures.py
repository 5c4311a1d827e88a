"""The statistics and thresholds of the monitors: what is watched while training and what is recorded at the end use the
same. The thresholds are this project's own, not the literature's; docs/monitors.md lists them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, variance

from grpo_core.stats.correlation import spearman

MAX_TRUNCATED = 0.2
"""Share of completions that may be truncated."""
MAX_RHO = 0.3
"""Rank correlation of reward and length, either way."""
MIN_ENTROPY_LEFT = 0.2
"""Share of its start that the token entropy may fall to."""
MAX_DUPLICATES = 0.5
"""Share of completions that may equal another of their group."""
MAX_ALL_EQUAL = 0.8
"""Share of groups without a signal."""
MAX_MADS = 5.0
"""Median absolute deviations above the median."""
LEAST_FOR_RANKS = 4
"""Completions of a group that a rank correlation is taken of."""
LEAST_FOR_A_SPIKE = 10
"""Steps that a spike is compared with."""
Z_GAIN = 3.0
"""Standard errors to either side of a gain's interval: it is looked at after every step, so 95 % would be too few."""

_BLOCKS = 200
"""Steps are averaged into at most so many blocks before a trend is looked for: the test compares all pairs."""


@dataclass(frozen=True)
class Gain:
    """From the mean of one series to that of a later one, with an interval of `Z_GAIN` standard errors."""

    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.after - self.before


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Welch's standard error. A trend inside a series widens the interval. Needs two values of each."""
    start, end = fmean(before), fmean(after)
    half = Z_GAIN * math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return Gain(start, end, end - start - half, end - start + half)


@dataclass(frozen=True)
class Share:
    """A share with its 95 % interval."""

    score: float
    low: float
    high: float


def share_gain(before: Share, after: Share) -> Gain:
    """Newcombe's interval of a difference (1998, Statistics in Medicine 17, method 10), from the intervals of the two
    shares. It takes them for independent, so for the same problems twice it is too wide, never too narrow."""
    difference = after.score - before.score
    low = difference - math.hypot(after.score - after.low, before.high - before.score)
    high = difference + math.hypot(after.high - after.score, before.score - before.low)
    return Gain(before.score, after.score, low, high)


def deviations(value: float, others: Sequence[float]) -> float | None:
    """Distance of `value` above the median of the others, in median absolute deviations of theirs; None where over half
    of them are equal."""
    middle = median(others)
    spread = median(abs(other - middle) for other in others)
    return (value - middle) / spread if spread > 0 else None


def rising(values: Sequence[float]) -> float:
    """One-sided p that `values`, in order, have no rising trend: Mann (1945) and Kendall (1975), with the correction
    for ties and for continuity. Needs 3 values or more."""
    block = math.ceil(len(values) / _BLOCKS)
    means = [fmean(values[at : at + block]) for at in range(0, len(values), block)]
    n = len(means)
    s = sum((means[j] > means[i]) - (means[j] < means[i]) for i in range(n) for j in range(i + 1, n))
    ties = Counter(means).values()
    spread = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if spread <= 0 or s == 0:
        return 0.5 if s == 0 else 1.0
    return 1 - NormalDist().cdf((s - math.copysign(1, s)) / math.sqrt(spread))


@dataclass
class LengthCorrelation:
    """Spearman's ρ of reward and length within groups, their mean weighed by size."""

    weighed: float = 0.0
    ranked: int = 0
    """Completions of groups in which both reward and length differ."""

    def add(self, rewards: Iterable[float | None], lengths: Iterable[int]) -> None:
        """One group; a completion without a reward is left out."""
        pairs = [(r, n) for r, n in zip(rewards, lengths, strict=True) if r is not None]
        if len(pairs) >= LEAST_FOR_RANKS and (rho := spearman(pairs)) is not None:
            self.weighed += rho * len(pairs)
            self.ranked += len(pairs)

    @property
    def rho(self) -> float | None:
        return self.weighed / self.ranked if self.ranked else None


def repeated(texts: Iterable[str]) -> int:
    """How many of a group's completions equal another of it."""
    return sum(count for count in Counter(texts).values() if count > 1)


def variance_shares(groups: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Of each component the share of the rewards' variance within groups that it is: Σ (part − its mean)(reward − its
    mean) over Σ (reward − its mean)², means of the group. They add up to 1. `groups` [group][completion]: weighted
    value by component, the reward being their sum. Empty where no reward differs within its group."""
    shares: dict[str, float] = {}
    whole = 0.0
    for group in groups:
        names = dict.fromkeys(name for parts in group for name in parts)
        rewards = [math.fsum(parts.values()) for parts in group]
        away = [reward - fmean(rewards) for reward in rewards]
        whole += math.fsum(a * a for a in away)
        for name in names:
            values = [parts.get(name, 0.0) for parts in group]
            mean = fmean(values)
            own = math.fsum((v - mean) * a for v, a in zip(values, away, strict=True))
            shares[name] = shares.get(name, 0.0) + own
    return {name: share / whole for name, share in shares.items()} if whole > 1e-12 else {}
