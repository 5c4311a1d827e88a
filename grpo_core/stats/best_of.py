"""Best-of-n: what the best of n completions by a learned reward is worth by that reward and by a verifier, for each n,
and from which n on the two part (Gao, Schulman and Hilton 2022, arXiv 2210.10760).

Expectations are exact over all N samples of a problem; what is left to chance is which problems there are, and that is
what the intervals are of. Only numbers: nothing is sampled or scored here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from grpo_core.stats.bootstrap import bootstrap

RESAMPLES = 1_999
"""Of each interval: some thirty are made, of a few dozen problems each."""
LEAST_DOUBLINGS = 2
"""So many doublings of n without a gain that can be shown are a stop; the last doubling alone seldom shows one."""

Outcome = Literal["falls", "stops", "together", "no_rise"]


def expected_best(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """Expected value of the sample with the highest score among n of the N, drawn without replacement.

    Σᵢ v₍ᵢ₎·C(i−1, n−1)/C(N, n) over the samples in ascending order of their scores: the unbiased estimator of Hilton
    and Gao 2022, "Measuring Goodhart's law", which arXiv 2210.10760 uses (as pass@k of Chen et al. 2021 is for counts).
    Among equal scores each sample is equally likely to be taken. With `values` equal to `scores` it is the expected
    maximum. Raises ValueError unless 1 ≤ n ≤ N.
    """
    count = len(scores)
    if not 1 <= n <= count:
        raise ValueError(f"the best of {n} needs at least that many samples, not {count}")
    order = sorted(range(count), key=lambda index: scores[index])
    below, terms = 0, list[float]()
    for _, block in groupby(order, key=lambda index: scores[index]):
        tied = list(block)
        ways = math.comb(below + len(tied), n) - math.comb(below, n)  # draws whose highest score is this one
        terms.append(ways / math.comb(count, n) * math.fsum(values[index] for index in tied) / len(tied))
        below += len(tied)
    return math.fsum(terms)


def kl_of_best(n: int) -> float:
    """KL divergence of best-of-n from the policy in nats, log n − (n − 1)/n (arXiv 2210.10760, section 2; an upper
    bound where completions repeat, Beirami et al. 2024, arXiv 2401.01879)."""
    return math.log(n) - (n - 1) / n


def sizes(samples: int) -> list[int]:
    """1, 2, 4 … and the number of samples itself."""
    return [*(1 << power for power in range(samples.bit_length()) if 1 << power < samples), samples]


@dataclass(frozen=True, slots=True)
class Mean:
    """Of all problems, with the 95 % interval of a bootstrap over them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BestOf:
    """The best of n by the learned reward."""

    n: int
    kl: float
    reward: Mean
    verifier: Mean


@dataclass(frozen=True, slots=True)
class Parting:
    """How the verifier goes as the reward goes up.

    falls: from `n` on the verifier's score is below its highest. stops: from `n` on it gains nothing that can be
    shown. together: neither. no_rise: the reward itself does not rise from 1 to N, so nothing was optimised.
    """

    outcome: Outcome
    n: int | None
    """None for together and no_rise."""
    peak: int
    """The n at which the verifier's mean is highest; the smallest of equals."""
    reward: Mean | None
    """What the reward gained: for falls from the peak to `n`, else from `n`, or from 1, to N."""
    verifier: Mean | None
    """What the verifier's score changed by in the same place."""


@dataclass(frozen=True, slots=True)
class Curves:
    """For each problem and each n, what the best of n is worth in the mean."""

    sizes: tuple[int, ...]
    rewards: tuple[tuple[float, ...], ...]
    """[problem][size]"""
    verifiers: tuple[tuple[float, ...], ...]

    def points(self, *, seed: int) -> list[BestOf]:
        return [
            BestOf(n, kl_of_best(n), _mean(_column(self.rewards, at), seed), _mean(_column(self.verifiers, at), seed))
            for at, n in enumerate(self.sizes)
        ]

    def parting(self, *, seed: int) -> Parting:
        """Where reward and verifier part. A difference of two n is paired by problem, and shown when its 95 % interval
        is without 0.

        The peak is the n with the highest verifier mean. `falls`, at the smallest n beyond the peak such that, there
        and at every larger n, the verifier is shown to be below the peak while the reward is shown to be above what it
        is there. Otherwise `stops`, at the smallest n of which N is at least four times as many (`LEAST_DOUBLINGS`)
        such that from it to N no gain of the verifier is shown, while one of the reward is.
        """
        last = len(self.sizes) - 1
        means = [round(math.fsum(_column(self.verifiers, at)), 9) for at in range(len(self.sizes))]
        top = max(range(last + 1), key=lambda at: (means[at], -at))
        peak = self.sizes[top]

        def change(curve: tuple[tuple[float, ...], ...], start: int, end: int) -> Mean:
            return _mean([row[end] - row[start] for row in curve], seed)

        whole = change(self.rewards, 0, last), change(self.verifiers, 0, last)
        if whole[0].low <= 0:
            return Parting("no_rise", None, peak, *whole)
        fallen = None
        for at in range(last, top, -1):
            reward, verifier = change(self.rewards, top, at), change(self.verifiers, top, at)
            if reward.low <= 0 or verifier.high >= 0:
                break
            fallen = Parting("falls", self.sizes[at], peak, reward, verifier)
        if fallen is not None:
            return fallen
        for at, n in enumerate(self.sizes):
            if n << LEAST_DOUBLINGS > self.sizes[-1]:
                break
            reward, verifier = change(self.rewards, at, last), change(self.verifiers, at, last)
            if verifier.low <= 0 < reward.low:
                return Parting("stops", n, peak, reward, verifier)
        return Parting("together", None, peak, *whole)


def curves(rewards: Sequence[Sequence[float]], verifiers: Sequence[Sequence[float]]) -> Curves:
    """Of each problem's samples, [problem][sample]: the learned reward and the verifier's score of the same sample.
    `n` reaches up to the smallest number of samples that a problem has. Raises ValueError for no problem, or one
    without a sample, or of which the two differ in number."""
    if not rewards or len(rewards) != len(verifiers):
        raise ValueError(f"{len(rewards)} problems with rewards and {len(verifiers)} with scores are no curves")
    if uneven := [at for at, (a, b) in enumerate(zip(rewards, verifiers, strict=True)) if not a or len(a) != len(b)]:
        raise ValueError(f"problem {uneven[0]} has no samples, or not one score for each reward")
    ns = tuple(sizes(min(map(len, rewards))))
    return Curves(
        ns,
        tuple(tuple(expected_best(row, row, n) for n in ns) for row in rewards),
        tuple(tuple(expected_best(row, scores, n) for n in ns) for row, scores in zip(rewards, verifiers, strict=True)),
    )


def _column(rows: Sequence[Sequence[float]], at: int) -> list[float]:
    return [row[at] for row in rows]


def _mean(values: Sequence[float], seed: int) -> Mean:
    interval = bootstrap(values, seed=seed, resamples=RESAMPLES)
    return Mean(math.fsum(values) / len(values), interval.low, interval.high)
