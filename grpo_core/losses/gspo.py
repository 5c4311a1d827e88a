"""GSPO: one importance ratio for a completion, clipped as a whole."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens
from grpo_core.losses.clip import clipped

BOUND = "each completion's ratio (geometric mean over tokens) kept between 1 − {clip_low} and 1 + {clip_high}"


def gspo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −min(s·A, clip(s, 1−ε_low, 1+ε_high)·A), with s = exp(mean over the row of log π − log π_old).

    s is the geometric mean of the tokens' ratios, so its spread does not grow with length and ε is far smaller than
    PPO's: the paper used 3e-4 and 4e-4 (section 5.1). The row's loss is repeated at each of its tokens; aggregation
    sequence_mean counts it once.

    Source: GSPO (arXiv 2507.18071, equation 5). LUSPO (arXiv 2602.05261) is the same loss times the row's length,
    which aggregation sequence_sum multiplies by.
    """
    ratio_N = tokens.row_mean(tokens.logprobs_N - tokens.old_logprobs_N).exp()
    return clipped(ratio_N, tokens.advantages_N, low=settings.clip_low, high=settings.clip_high)


SPEC = Loss(
    "gspo",
    gspo_loss,
    words="clipped ratio of whole completions (GSPO)",
    bound=BOUND,
    formula="−min(s·A, clip(s)·A), s = exp(mean log r)",
    source="arXiv 2507.18071",
    settings={"clip_low": "", "clip_high": ""},
    aggregations=("sequence_mean",),
    per_completion=True,
)
