"""supervision process: a reward for each step of a completion (DeepSeekMath's process supervision)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_core.algo.advantages.compare import all_equal, deviation
from grpo_core.config.algorithm import Scale

Steps = Sequence[tuple[int, float]]
"""A completion's steps: (place of the last token, reward), in order."""


def process_advantages(
    step_rewards: Sequence[Sequence[Steps]],
    scored_PG: Tensor,
    lengths_PG: Tensor,
    *,
    scale: Scale,
    ddof: int,
    eps: float,
) -> list[list[Tensor]]:
    """A_it = Σ over the steps of completion i that end at token t or later of (r − mean) / (std + eps), mean and std
    over all step rewards of the group together; [p][g] → float64, shape T.

    scale  group_std: as above. none: no division.
    ddof   of the std, over the number of step rewards.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.3. Tokens after a completion's last step get 0. Unscored
    samples are left out and get 0. A group gets exactly 0 throughout when its step rewards are equal
    (`EQUAL_TOLERANCE`) or fewer than two, or fewer than two of its samples are scored.
    """
    return [
        _one_group(steps, scored, lengths, scale=scale, ddof=ddof, eps=eps)
        for steps, scored, lengths in zip(step_rewards, scored_PG.tolist(), lengths_PG.tolist(), strict=True)
    ]


def _one_group(
    steps: Sequence[Steps], scored: list[bool], lengths: list[int], *, scale: Scale, ddof: int, eps: float
) -> list[Tensor]:
    rewards_N = torch.tensor(
        [reward for own, used in zip(steps, scored, strict=True) if used for _, reward in own], dtype=torch.float64
    )
    result = [torch.zeros(length, dtype=torch.float64) for length in lengths]
    if sum(scored) < 2 or all_equal(rewards_N):
        return result
    mean = rewards_N.mean()
    divisor = deviation(rewards_N, ddof) + eps if scale == "group_std" else torch.ones_like(mean)
    for tokens_T, own, used in zip(result, steps, scored, strict=True):
        if used and own:
            places = torch.tensor([place for place, _ in own])
            normal_S = (torch.tensor([reward for _, reward in own], dtype=torch.float64) - mean) / divisor
            tokens_T.index_add_(0, places, normal_S)
            tokens_T.copy_(tokens_T.flip(0).cumsum(0).flip(0))
    return result
