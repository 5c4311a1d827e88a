"""REINFORCE: the policy gradient itself, without a ratio."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens, unclipped


def reinforce_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −A·log π. The gradient is −A·∇log π wherever the old policy was; it is exact only while the policy is the one
    that sampled (μ 1 and one mini-batch). Nothing is clipped.

    Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
    """
    return unclipped(-tokens.advantages_N * tokens.logprobs_N)


SPEC = Loss(
    "reinforce",
    reinforce_loss,
    words="policy gradient without a ratio (REINFORCE)",
    bound="none: the loss has no ratio",
    formula="−A·log π",
    source="Williams 1992",
    by_token=True,
    ratio="none",
    clips=False,
    bounded=False,
    implied_by=("REINFORCE", "RLOO"),
)
