"""How two who classify the same things agree: Cohen's κ with its large-sample interval, and two rewards on what is
right."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.stats.quantiles import Z95, wilson


@dataclass(frozen=True, slots=True)
class Kappa:
    n: int
    """Things that both classified."""
    observed: float | None
    """Share on which they agree."""
    value: float | None
    low: float | None
    """Of the two-sided 95 % interval."""
    high: float | None
    reason: str
    """Why value or interval are None; empty where both are there."""


def cohen_kappa(pairs: Iterable[tuple[Hashable, Hashable]]) -> Kappa:
    """κ = (p_o − p_e) / (1 − p_e) of Cohen (1960), Educational and Psychological Measurement 20, over the `pairs` of
    classes; the interval by the standard error of Fleiss, Cohen & Everitt (1969), Psychological Bulletin 72, eq. 13,
    cut at −1 and 1. Without weights: every disagreement counts the same. A Counter of pairs counts each so many times.
    """
    cells = Counter(pairs)
    n = cells.total()
    if n == 0:
        return Kappa(0, None, None, None, None, "nothing was judged by both")
    first: Counter[Hashable] = Counter()
    second: Counter[Hashable] = Counter()
    for (a, b), count in cells.items():
        first[a] += count
        second[b] += count
    agreeing = sum(count for (a, b), count in cells.items() if a == b)
    by_chance = sum(count * second[a] for a, count in first.items())  # in n² so that equality is exact
    observed = agreeing / n
    if by_chance == n * n:
        return Kappa(n, observed, None, None, None, "both gave one and the same judgement throughout")
    expected = by_chance / (n * n)
    value = (observed - expected) / (1 - expected)
    # Marginals by the class, p_i· of the first and p_·i of the second.
    within = sum(
        count / n * (1 - (first[a] + second[a]) / n * (1 - value)) ** 2 for (a, b), count in cells.items() if a == b
    )
    between = sum(count / n * ((second[a] + first[b]) / n) ** 2 for (a, b), count in cells.items() if a != b)
    variance = within + (1 - value) ** 2 * between - (value - expected * (1 - value)) ** 2
    if variance < 1e-12:  # such as when they agree on all: no interval of width 0 for a handful of judgements
        return Kappa(n, observed, value, None, None, "such a table's large-sample error is 0, which is no interval")
    half = Z95 * math.sqrt(variance / n) / (1 - expected)
    return Kappa(n, observed, value, max(-1.0, value - half), min(1.0, value + half), "")


VERDICTS = ("right", "wrong", "neither")
"""Of a reward on a sample; neither: it cannot say, or there is no score."""


def agreement_figures(confusion: Sequence[Sequence[int]]) -> dict[str, Any]:
    """JSON-ready, over the samples that both rewards call right or wrong: `agreement` as {count, n, share, low, high}
    with Wilson's 95 % interval, and Cohen's `kappa` as {value, low, high, reason}; null where n is 0.

    `confusion`: [first][second] → samples, both in the order of `VERDICTS`.
    """
    pairs = Counter({(first, second): confusion[first][second] for first in range(2) for second in range(2)})
    n, agreeing = pairs.total(), pairs[0, 0] + pairs[1, 1]
    if n == 0:
        return {"agreement": None, "kappa": None}
    interval, kappa = wilson(agreeing, n), cohen_kappa(pairs)
    return {
        "agreement": {"count": agreeing, "n": n, "share": agreeing / n, "low": interval.low, "high": interval.high},
        "kappa": {"value": kappa.value, "low": kappa.low, "high": kappa.high, "reason": kappa.reason},
    }
