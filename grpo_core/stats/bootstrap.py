"""Paired bootstrap of a mean difference by resampling problems, or whole clusters. The same input and seed give the
same interval on every machine and every Python: draws are SHAKE-256 of the seed, sums are of integers.
"""

import hashlib
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from grpo_core.stats.clustered import by_cluster

RESAMPLES = 9_999
"""With it every bound is one of the resampled means: 0.025·(9,999 + 1) = 250 (Davison and Hinkley 1997, "Bootstrap
Methods and their Application")."""
MOST_UNITS = 500
_SCALE = 1 << 40
"""Differences are rounded to 2⁻⁴⁰, so that their sums are exact in any order."""
_WORDS = 1 << 16


@dataclass(frozen=True, slots=True)
class Bootstrap:
    low: float
    """95 % interval: the 2.5 and 97.5 % points of the resampled means (Efron 1979; the percentile method)."""
    high: float
    p: float
    """Two-sided, of no difference: twice the share of resampled means on the rarer side of 0, with one added to both
    counts (Davison and Hinkley 1997, 4.2.3). 5 % at most just where the interval is without 0."""
    resamples: int
    seed: int


def bootstrap(
    differences: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    padded: bool = False,
) -> Bootstrap:
    """Resample units (problems, or clusters whole) with replacement, as many as there are; the mean of each resample
    is its sum of differences over its number of problems.

    `padded` adds the two pseudo-units of `clustered` to what is drawn from and draws two more, so that few equal
    differences are not certainty: the resampled means then have the very variance of `clustered`. More than 500
    units are first dealt at random into 500 groups, which are then resampled (random groups: Wolter 2007,
    Introduction to Variance Estimation, chapter 2), without padding, which no longer matters.

    The draws of resample r are, modulo the number of units, the first 16-bit little-endian words of
    SHAKE-256("cohort-bootstrap:<seed>:<r>") that lie below the largest multiple of that number, so that each unit's
    chance is exactly the same. Raises ValueError when (resamples + 1)·0.025 is not whole.
    """
    if resamples < 1 or (resamples + 1) % 40:
        raise ValueError(f"resamples must be one less than a multiple of 40, such as {RESAMPLES}, not {resamples}")
    exact, sizes = by_cluster(differences, clusters)
    sums = [round(total * _SCALE) for total in exact]
    if len(sums) > MOST_UNITS:
        sums, sizes = _dealt(sums, sizes, seed)
        draws = len(sums)
    elif padded:
        count, n = len(sums), sum(sizes)  # times 2 and times count, so that half a unit of mean size is whole
        sums = [total * count for total in sums for _ in range(2)] + [n * _SCALE, -n * _SCALE, 0, 0]
        sizes, draws = [size * count for size in sizes for _ in range(2)] + [n] * 4, count + 2
    else:
        draws = len(sums)
    means = sorted(_means(sums, sizes, draws, resamples, seed))
    low, high = (means[(resamples + 1) * share // 1000 - 1] for share in (25, 975))
    rarer = min(sum(mean <= 0 for mean in means), sum(mean >= 0 for mean in means))
    return Bootstrap(low=low, high=high, p=min(1.0, 2 * (rarer + 1) / (resamples + 1)), resamples=resamples, seed=seed)


def _means(sums: list[int], sizes: list[int], draws: int, resamples: int, seed: int) -> list[float]:
    units = len(sums)
    below = _WORDS - _WORDS % units
    sum_of, size_of = (sums * (below // units)).__getitem__, (sizes * (below // units)).__getitem__
    even = sizes[0] * draws if len(set(sizes)) == 1 else None
    means = []
    for resample in range(resamples):
        picks = _below(below, f"{seed}:{resample}", draws)
        n = even if even is not None else sum(map(size_of, picks))
        means.append(sum(map(sum_of, picks)) / (n * _SCALE))
    return means


def _below(limit: int, name: str, count: int) -> list[int]:
    """The first `count` words of the stream that are below `limit`."""
    words = count + count // 8 + 64
    while True:
        read = struct.unpack(f"<{words}H", _stream(name, 2 * words))
        if len(accepted := [word for word in read if word < limit]) >= count:
            return accepted[:count]
        words *= 2


def _dealt(sums: list[int], sizes: list[int], seed: int) -> tuple[list[int], list[int]]:
    """The units in MOST_UNITS groups, their numbers equal to within one, by a shuffle from the seed."""
    words = struct.unpack(f"<{len(sums)}Q", _stream(f"{seed}:deal", 8 * len(sums)))
    order = sorted(range(len(sums)), key=lambda index: (words[index], index))
    groups = [order[start::MOST_UNITS] for start in range(MOST_UNITS)]
    return [sum(sums[i] for i in group) for group in groups], [sum(sizes[i] for i in group) for group in groups]


def _stream(name: str, length: int) -> bytes:
    return hashlib.shake_256(f"cohort-bootstrap:{name}".encode()).digest(length)
