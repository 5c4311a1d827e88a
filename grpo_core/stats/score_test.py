"""Bounds of a difference of matched shares by Tango's score test, which holds its level where few problems change."""

import math


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
