"""pass_at_k: a completion counts by what it adds to the best of k.

Nothing is enumerated: a group is sorted, and the share of k-subsets whose best sample has a given rank is a ratio of
binomials, built up as a product of numbers of at most 1. So it is exact to float64 for any group size.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from grpo_core.advantages.base import (
    AdvantageSettings,
    Estimate,
    Estimator,
    Figures,
    GroupScores,
    Scale,
    Scaling,
    StepScores,
    Tensor,
    Terms,
)
from grpo_core.advantages.compare import Groups, differ
from grpo_core.stats.paired import nearly_equal


def pass_at_k(scores: StepScores, groups: Groups, settings: AdvantageSettings) -> Estimate:
    """A_i = (E[max(I) | i in I] − R̄) / (σ + eps) over all subsets I of k scored samples of the group.

    R̄, σ   mean and population standard deviation of max(I) over all of them
    k, eps  `pass_k`, `advantage_eps`
    scale  group_std: as above. none: without the division.

    Source: "Pass@k Training", arXiv 2508.10751, its analytical form, which is for rewards 1 and 0; here a subset earns
    its largest reward, whatever it is. With 1 and 0 both are the same, and k = 1 is the group's population z-score.

    Exactly 0 where not scored, and throughout a group where max(I) is the same for every I: equal rewards, at most
    k scored samples, or at least n − k + 1 of n samples with the largest reward.
    """
    k = settings.pass_k
    if k is None:
        raise ValueError("advantage pass_at_k needs pass_k")
    advantages_PG = groups.rewards_PG.new_zeros(groups.rewards_PG.shape)
    for p, (count, mixed) in enumerate(zip(groups.count_P.tolist(), groups.mixed_P.tolist(), strict=True)):
        if mixed and count > k:
            scored_G = groups.scored_PG[p]
            advantages_PG[p, scored_G] = _one_group(
                groups.rewards_PG[p, scored_G], k, settings.scale, settings.advantage_eps
            )
    return Estimate(advantages_PG)


def _one_group(rewards_G: Tensor, k: int, scale: Scale, eps: float) -> Tensor:
    import torch

    sorted_G, indices_G = rewards_G.sort()
    if not bool(differ(sorted_G[k - 1], sorted_G[-1])):  # the worst and the best that a subset can earn
        return torch.zeros_like(rewards_G)
    shares = _shares(len(rewards_G), k)
    below_G = sorted_G - sorted_G[-1]  # ≤ 0, so the sums below have one sign and lose no digits
    mean = (shares.best_G * below_G).sum()
    later_G = (shares.later_G * below_G).flip(0).cumsum(0).flip(0)
    with_G = shares.itself_G * below_G + torch.cat([later_G[1:], later_G.new_zeros(1)])
    with_G = with_G[torch.searchsorted(sorted_G, sorted_G)]  # equal rewards get the same number to the last bit
    advantages_G = with_G - mean
    if scale == "group_std":
        divisor = (shares.best_G * (below_G - mean).square()).sum().sqrt() + eps
        # Rewards that differ can still have σ 0 in float64, when almost every subset earns the same and eps is 0.
        advantages_G = advantages_G / divisor if divisor > 0 else torch.zeros_like(advantages_G)
    return torch.empty_like(advantages_G).scatter_(0, indices_G, advantages_G)


class _Shares(NamedTuple):
    """Shares of subsets, by rank; rank j (from 1) is the j-th smallest of n."""

    itself_G: Tensor
    """C(j−1, k−1) / C(n−1, k−1): of the subsets with j, those whose best is j."""
    best_G: Tensor
    """C(j−1, k−1) / C(n, k): of all subsets, those whose best is j."""
    later_G: Tensor
    """C(j−2, k−2) / C(n−1, k−1): of the subsets with a certain lower one, those whose best is j."""


@lru_cache(maxsize=256)
def _shares(n: int, k: int) -> _Shares:
    import torch

    itself = [0.0] * n
    itself[-1] = 1.0
    for j in range(n, k, -1):  # C(j−2, k−1) / C(j−1, k−1) = (j−k) / (j−1)
        itself[j - 2] = itself[j - 1] * (j - k) / (j - 1)
    itself_G = torch.tensor(itself, dtype=torch.float64)
    below_G = torch.arange(n, dtype=torch.float64).clamp(min=1)  # j − 1; at rank 1 it has no effect
    return _Shares(itself_G, itself_G * k / n, itself_G * (k - 1) / below_G)


def explain_pass_at_k(own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings) -> Figures:
    """`pass_at_k` of one group, by counting subsets with binomials."""
    k, ranked = settings.pass_k or 1, sorted(own.scored)
    n = len(ranked)
    if n <= k:
        return Figures(own.rewards, None, {}, zero_because=f"Only {n} samples are scored, and k is {k}")
    if nearly_equal(ranked[k - 1 :]):
        return Figures(own.rewards, None, {}, zero_because=f"Every {k} samples have the same best reward")
    best = [math.comb(rank - 1, k - 1) / math.comb(n, k) for rank in range(1, n + 1)]
    mean = math.fsum(share * reward for share, reward in zip(best, ranked, strict=True))
    std = math.sqrt(math.fsum(share * (reward - mean) ** 2 for share, reward in zip(best, ranked, strict=True)))
    with_it = {reward: _with_it(rank, ranked, k) for rank, reward in enumerate(ranked, start=1)}
    values = [None if reward is None else with_it[reward] for reward in own.rewards]
    divisor = std + settings.advantage_eps if settings.scale == "group_std" else 1
    return Figures(
        values,
        Terms(mean, divisor=divisor),
        {"best_mean": mean, "best_std": std},
        columns={f"mean best of {k} with it": values},
        zero_because="" if divisor > 0 else "Almost every subset has the same best reward",
    )


def _with_it(rank: int, ranked: Sequence[float], k: int) -> float:
    """Mean best reward of the k-subsets that hold the sample of this rank, from 1."""
    n = len(ranked)
    subsets = math.comb(n - 1, k - 1)
    itself = math.comb(rank - 1, k - 1) / subsets * ranked[rank - 1]
    later = range(rank + 1, n + 1) if k > 1 else ()
    return math.fsum([itself, *(math.comb(j - 2, k - 2) / subsets * ranked[j - 1] for j in later)])


SPEC = Estimator(
    "pass_at_k",
    ("GRPO", "Group Relative Policy Optimization (GRPO) with pass@k advantages"),
    "group",
    source="arXiv 2508.10751",
    help="the best of k",
    scales={
        "group_std": Scaling(
            "best of k (Pass@k)",
            "Pass@k",
            "What a completion adds to the best of k of its group, divided by the spread of that best. k is set under "
            "Advantage.",
            "what a completion adds to the mean best reward of {pass_k} of its group, divided by its standard "
            "deviation + {eps} (pass@k)",
            "(mean best of k with it − {best_mean}) / ({best_std} + {eps})",
        ),
        "none": Scaling(
            "best of k, not divided (Pass@k)",
            "Pass@k",
            "What a completion adds to the best of k of its group. k is set under Advantage.",
            "what a completion adds to the mean best reward of {pass_k} of its group (pass@k)",
            "mean best of k with it − {best_mean}",
            usual=False,
        ),
    },
    compute=pass_at_k,
    explain=explain_pass_at_k,
    settings=("pass_k",),
    needed="pass_k, the number of tries of which one must succeed",
)
