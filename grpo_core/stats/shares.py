"""Intervals of a share: how far the true one may lie from the one counted."""

import math
from dataclasses import dataclass

from grpo_core.stats.quantiles import Z95


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


def wilson(successes: float, n: float, z: float = Z95) -> Interval:
    """Wilson score interval of a proportion (Wilson 1927, JASA 22; method 3 of Newcombe 1998, Statistics in Medicine
    17). `successes` may be a sum of scores between 0 and 1; `n` may be an effective number (`effective_n`)."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"wilson needs n of at least 1 and 0 to n successes, not {successes} of {n}")
    p = successes / n
    spread = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / spread
    half = z / spread * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(
        low=0.0 if successes == 0 else max(0.0, centre - half), high=1.0 if successes == n else min(1.0, centre + half)
    )


def none_of(n: int) -> float:
    """The largest share that seeing none in `n` leaves open: exact one-sided 95 % bound 1 − 0.05^(1/n), about 3/n
    (the rule of three: Hanley and Lippman-Hand 1983, JAMA 249)."""
    if n < 1:
        raise ValueError(f"none_of needs at least 1 observation, not {n}")
    return -math.expm1(math.log(0.05) / n)
