"""Quantiles of the normal and of Student's t distribution, and Wilson's interval of a share."""

import math
from dataclasses import dataclass
from functools import lru_cache

Z95 = 1.959963984540054
"""97.5 % point of the normal distribution: two-sided 95 %."""
Z95_ONE_SIDED = 1.6448536269514722
"""95 % point: one-sided 95 %."""
Z80 = 0.8416212335729143
"""80 % point: the power that a minimum detectable effect asks for."""
_NORMAL_POINT = {0.975: Z95, 0.95: Z95_ONE_SIDED, 0.8: Z80}
_MOST_BY_SERIES = 200


@lru_cache(maxsize=4096)
def student_t(share: float, degrees: int) -> float:
    """The point below which `share` (0.8, 0.95 or 0.975) of Student's t distribution lies; `degrees` of 1 or more.

    Up to 200 degrees by bisection of the finite series of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4; above by
    their expansion 26.7.5, whose error there is below 1e-10.
    """
    if degrees < 1:
        raise ValueError(f"student_t needs at least 1 degree of freedom, not {degrees}")
    if share not in _NORMAL_POINT:
        raise ValueError(f"student_t knows the shares {', '.join(map(str, _NORMAL_POINT))}, not {share}")
    x = _NORMAL_POINT[share]
    if degrees > _MOST_BY_SERIES:
        v, x2 = float(degrees), x * x
        g1 = x * (x2 + 1) / 4
        g2 = x * ((5 * x2 + 16) * x2 + 3) / 96
        g3 = x * (((3 * x2 + 19) * x2 + 17) * x2 - 15) / 384
        g4 = x * ((((79 * x2 + 776) * x2 + 1482) * x2 - 1920) * x2 - 945) / 92160
        return x + (g1 + (g2 + (g3 + g4 / v) / v) / v) / v
    low, high = x, 64.0  # no t is nearer to 0 than the normal's point; the farthest needed is 12.7062
    for _ in range(64):
        middle = (low + high) / 2
        if 1 - student_p(middle, degrees) < 2 * share - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_p(t: float, degrees: int) -> float:
    """Two-sided p: the probability of a value at least as far from 0 as `t` (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    terms = [term] if degrees > 1 else []
    for k in range(2 + odd, degrees - 1, 2):
        term *= square * (k - 1) / k
        terms.append(term)
    inside = sine * math.fsum(terms)
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if odd else inside))


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
