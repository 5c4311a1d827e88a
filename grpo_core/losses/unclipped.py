"""The surrogate that PPO clips and TRPO bounds by a trust region: the advantage times the ratio."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens, unclipped


def unclipped_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −r·A, with r = exp(log π − log π_old) per token. Nothing holds the ratio back: with AdamW it is for one
    update of a sampled batch, where it equals `clip`; with optim.method: trpo the trust region bounds the step.

    Source: TRPO (arXiv 1502.05477, equation 14); the objective L^CPI of PPO (arXiv 1707.06347, equation 6).
    """
    ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).exp()
    return unclipped(-ratio_N * tokens.advantages_N)


SPEC = Loss(
    "unclipped",
    unclipped_loss,
    words="policy gradient weighed by the ratio, without a clip",
    bound="none: the ratio may take any value",
    formula="−r·A",
    source="arXiv 1502.05477, 1707.06347",
    by_token=True,
    clips=False,
    bounded=False,
)
