"""group: the reward beside the mean of its own group (GRPO, Dr. GRPO, Lite-PPO)."""

import torch
from torch import Tensor

from grpo_core.algo.advantages.compare import Groups, deviation
from grpo_core.config.algorithm import Scale


def group_advantages(groups: Groups, *, scale: Scale, ddof: int, eps: float) -> Tensor:
    """A_i = (r_i − mean(r)) / (std + eps), the mean over the sample's own group; shape PG.

    scale  group_std: std of the group (GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1.2)
           batch_std: std of all scored rewards of the step (Lite-PPO, arXiv 2508.08221)
           none: no division (Dr. GRPO, arXiv 2503.20783)
    ddof   of the batch's std; the group's is in `groups` already.

    Exactly 0 where not scored, and throughout a group with equal rewards or fewer than two scored samples.
    """
    match scale:
        case "group_std":
            divisor_P = groups.std_P + eps
        case "batch_std":
            divisor_P = (deviation(groups.rewards_PG[groups.scored_PG], ddof) + eps).expand_as(groups.mean_P)
        case "none":
            divisor_P = torch.ones_like(groups.mean_P)
    centred_PG = groups.centred_PG
    return torch.where(groups.mixed_P[:, None], centred_PG / divisor_P[:, None], torch.zeros_like(centred_PG))
