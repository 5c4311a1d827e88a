"""supervision process: a reward for each step of a completion (DeepSeekMath's process supervision)."""

from collections.abc import Sequence
from itertools import accumulate

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
)
from grpo_core.advantages.compare import Groups, all_equal, deviation
from grpo_core.advantages.explain import moments
from grpo_core.stats.paired import nearly_equal

Steps = Sequence[tuple[int, float]]
"""A completion's steps: (index of the last token, reward), in order."""


def process_advantages(scores: StepScores, groups: Groups, settings: AdvantageSettings) -> Estimate:
    """A_it = Σ over the steps of completion i that end at token t or later of (r − mean) / (std + eps), mean and std
    over all step rewards of the group together.

    scale  group_std: as above. none: no division.
    ddof   of the std, over the number of step rewards.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.3. Tokens after a completion's last step get 0. Unscored
    samples are left out and get 0. A group gets exactly 0 throughout when its step rewards are equal
    (`EQUAL_TOLERANCE`) or fewer than two, or fewer than two of its samples are scored.
    """
    scale, ddof, eps = settings.scale, settings.std_ddof, settings.advantage_eps
    rows = zip(scores.given("step_rewards"), groups.scored_PG.tolist(), scores.lengths_PG.tolist(), strict=True)
    return Estimate(
        tokens=[_one_group(steps, scored, lengths, scale=scale, ddof=ddof, eps=eps) for steps, scored, lengths in rows]
    )


def _one_group(
    steps: Sequence[Steps], scored: list[bool], lengths: list[int], *, scale: Scale, ddof: int, eps: float
) -> list[Tensor]:
    import torch

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
            indices = torch.tensor([index for index, _ in own])
            normal_S = (torch.tensor([reward for _, reward in own], dtype=torch.float64) - mean) / divisor
            tokens_T.index_add_(0, indices, normal_S)
            tokens_T.copy_(tokens_T.flip(0).cumsum(0).flip(0))
    return result


def explain_process(own: GroupScores, step: Sequence[GroupScores], settings: AdvantageSettings) -> Figures:
    """`process_advantages` of one group, step by step: a step's tokens have the sum of it and of all later ones."""
    rewards = [
        reward
        for steps, scored in zip(own.step_rewards, own.rewards, strict=True)
        if scored is not None
        for reward in steps
    ]
    if len(own.scored) < 2 or len(rewards) < 2 or nearly_equal(rewards):
        return Figures(own.rewards, None, {}, zero_because="All step rewards of the group are equal")
    mean, std = moments(rewards, settings.std_ddof)
    divisor = std + settings.advantage_eps if settings.scale == "group_std" else 1
    shown = []
    for steps, scored in zip(own.step_rewards, own.rewards, strict=True):
        alone = [(reward - mean) / divisor for reward in steps] if scored is not None else []
        sums = list(accumulate(reversed(alone)))[::-1]
        shown.append(list(zip(steps, alone, sums, strict=False)))
    return Figures(own.rewards, None, {"steps_mean": mean, "steps_std": std}, steps=shown)


_REST = "a token's advantage is the sum over the steps that end at it or later (process supervision)"
_HELP = (
    "DeepSeekMath's process supervision: each step of a completion has a reward, compared with all steps of the group, "
    "and a token's advantage is the sum over the steps that end at it or later."
)

SPEC = Estimator(
    "process",
    ("GRPO", "Group Relative Policy Optimization (GRPO)"),
    "group",
    source="arXiv 2402.03300, section 4.1.3",
    help="the steps of all completions of its group, token by token",
    scales={
        "group_std": Scaling(
            "z-score in the group{std}, per step (process)",
            "process",
            _HELP,
            "each step's reward minus the mean over all steps of its group, divided by their {std} + {eps}; " + _REST,
            "Σ over steps that end later of (r − {steps_mean}) / ({steps_std} + {eps})",
        ),
        "none": Scaling(
            "mean only (Dr. GRPO), per step (process)",
            "process",
            _HELP,
            "each step's reward minus the mean over all steps of its group, not divided; " + _REST,
            "Σ over steps that end later of r − {steps_mean}",
        ),
    },
    compute=process_advantages,
    explain=explain_process,
    per_token="always",
    chosen_by="supervision",
)
