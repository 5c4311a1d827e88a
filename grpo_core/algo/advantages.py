"""From rewards to advantages: how much better a completion did than its group.

Pure functions on tensors. Shapes: P groups (one per prompt) · G completions in each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config import Scale
from grpo_core.records import Signal
from grpo_core.stats import EQUAL_TOLERANCE


@dataclass(frozen=True)
class Advantages:
    """What the group said about each of its completions."""

    advantages_PG: Tensor
    """float64; exactly 0 where there is nothing to learn."""
    mean_P: Tensor
    """Mean reward of the scored samples; NaN where none is scored."""
    std_P: Tensor
    """Their standard deviation with the chosen ddof; NaN where fewer than two are scored."""
    signals: tuple[Signal, ...]


def group_advantages(rewards_PG: Tensor, scored_PG: Tensor, *, scale: Scale, ddof: int, eps: float) -> Advantages:
    """A_i = (r_i − mean(r)) / (std + eps), the mean over the sample's own group.

    scale  group_std: std of the group (GRPO: DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.1.2)
           batch_std: std of all scored rewards of the step (Lite-PPO, arXiv 2508.08221)
           none: no division (Dr. GRPO, arXiv 2503.20783)
    ddof   0: population standard deviation, divides by G. 1: sample standard deviation, divides by G−1.

    Masked: a sample with scored False is in no mean and no std and gets advantage 0. A group with fewer than two scored
    samples, or with equal rewards (`EQUAL_TOLERANCE`), gets exactly 0 throughout.
    """
    rewards_PG = rewards_PG.to(torch.float64)
    scored_PG = scored_PG.to(torch.bool)
    nothing = torch.tensor(float("nan"), dtype=torch.float64)
    count_P = scored_PG.sum(dim=1)
    kept_PG = torch.where(scored_PG, rewards_PG, torch.zeros_like(rewards_PG))
    mean_P = torch.where(count_P > 0, kept_PG.sum(dim=1) / count_P.clamp(min=1), nothing)
    centred_PG = torch.where(scored_PG, rewards_PG - mean_P[:, None], torch.zeros_like(rewards_PG))
    enough_P = count_P >= 2
    variance_P = centred_PG.square().sum(dim=1) / (count_P - ddof).clamp(min=1)
    std_P = torch.where(enough_P, variance_P.sqrt(), nothing)

    highest_P = torch.where(scored_PG, rewards_PG, -torch.inf).amax(dim=1)
    lowest_P = torch.where(scored_PG, rewards_PG, torch.inf).amin(dim=1)
    size_P = torch.maximum(highest_P.abs(), lowest_P.abs()).clamp(min=1.0)
    mixed_P = enough_P & (highest_P - lowest_P > EQUAL_TOLERANCE * size_P)

    match scale:
        case "group_std":
            divisor_P = std_P + eps
        case "batch_std":
            divisor_P = (_std(rewards_PG[scored_PG], ddof) + eps).expand_as(mean_P)
        case "none":
            divisor_P = torch.ones_like(mean_P)
    advantages_PG = torch.where(mixed_P[:, None], centred_PG / divisor_P[:, None], torch.zeros_like(centred_PG))
    signals: tuple[Signal, ...] = tuple(
        "unscored" if not enough else "mixed" if mixed else "all_equal"
        for enough, mixed in zip(enough_P.tolist(), mixed_P.tolist(), strict=True)
    )
    return Advantages(advantages_PG, mean_P, std_P, signals)


def _std(values: Tensor, ddof: int) -> Tensor:
    if len(values) < 2:
        return torch.tensor(float("nan"), dtype=torch.float64)
    return values.std(correction=ddof)
