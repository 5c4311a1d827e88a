"""Rank correlation."""

import math
from collections.abc import Sequence
from statistics import fmean


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation with mean ranks for ties; None where one side does not vary."""
    first, second = (_ranks(side) for side in zip(*pairs, strict=True))
    mean = (len(pairs) + 1) / 2
    both = math.fsum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spreads = [math.fsum((a - mean) ** 2 for a in side) for side in (first, second)]
    return both / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else None


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    ranks: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        ranks.setdefault(value, []).append(rank)
    return [fmean(ranks[value]) for value in values]
