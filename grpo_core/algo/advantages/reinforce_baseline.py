"""reinforce_baseline: the reward beside the mean of the whole step."""

import torch
from torch import Tensor

from grpo_core.algo.advantages.compare import Groups, all_equal, deviation
from grpo_core.config.algorithm import Scale


def reinforce_baseline_advantages(groups: Groups, *, scale: Scale, ddof: int, eps: float) -> Tensor:
    """A_i = (r_i − mean over all scored rewards of the step) / divisor; shape PG.

    scale  none: divisor 1. batch_std: their standard deviation + eps.

    Source: REINFORCE with a constant baseline, Williams 1992. Exactly 0 where not scored, and throughout a step whose
    rewards are all equal or fewer than two. A group of equal rewards is not 0 when it did better or worse than the
    step.
    """
    rewards_N = groups.rewards_PG[groups.scored_PG]
    if all_equal(rewards_N):
        return torch.zeros_like(groups.rewards_PG)
    advantages_PG = groups.rewards_PG - rewards_N.mean()
    if scale == "batch_std":
        advantages_PG = advantages_PG / (deviation(rewards_N, ddof) + eps)
    return torch.where(groups.scored_PG, advantages_PG, torch.zeros_like(advantages_PG))
