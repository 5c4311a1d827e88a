"""GSPO-token: GSPO's ratio and clip, with advantages that may differ from token to token."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens
from grpo_core.losses.clip import clipped
from grpo_core.losses.gspo import BOUND


def gspo_token_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −min(s_t·A_t, clip(s_t, 1−ε_low, 1+ε_high)·A_t), with s_t = sg[s]·π/sg[π] and GSPO's s.

    sg stops the gradient: s_t has the value of s at every token of the row, and the gradient s·∇log π_t of its own
    token only. With one advantage for the row, value and gradient are those of GSPO.

    Source: GSPO (arXiv 2507.18071, section 4.3).
    """
    log_ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).detach()
    own_N = tokens.logprobs_N - tokens.logprobs_N.detach()  # value 0, gradient of log π
    ratio_N = (tokens.row_mean(log_ratio_N) + own_N).exp()
    return clipped(ratio_N, tokens.advantages_N, low=settings.clip_low, high=settings.clip_high)


SPEC = Loss(
    "gspo_token",
    gspo_token_loss,
    words="clipped ratio of whole completions with token advantages (GSPO-token)",
    bound=BOUND,
    formula="gspo's with s_t = sg[s]·π/sg[π] and A_t",
    source="arXiv 2507.18071",
    settings={"clip_low": "", "clip_high": ""},
    aggregations=("sequence_mean",),
)
