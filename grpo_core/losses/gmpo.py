"""GMPO: the geometric mean of a completion's clipped token ratios, which one outlying token moves little."""

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens


def gmpo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −A·exp(mean over the row of c_t), where c_t is log π − log π_old, held at ε_high from above where A is
    positive and at −ε_low from below where A is negative.

    The bounds are in log space: the paper's (e^−0.4, e^0.4) is clip_low 0.4 and clip_high 0.4. A held token has no
    gradient; the others of its row keep theirs. The row's loss is repeated at each of its tokens.

    Source: GMPO (arXiv 2507.20673), whose product of |min(ρ·A, clip(ρ)·A)| over tokens, to the power 1/length and with
    the sign of A, is this.
    """
    import torch

    log_ratio_N = tokens.logprobs_N - tokens.old_logprobs_N
    low_N = (tokens.advantages_N < 0) & (log_ratio_N < -settings.clip_low)
    high_N = (tokens.advantages_N > 0) & (log_ratio_N > settings.clip_high)
    held_N = torch.where(low_N, -settings.clip_low, torch.where(high_N, settings.clip_high, log_ratio_N))
    return Surrogate(
        loss_N=-tokens.advantages_N * tokens.row_mean(held_N).exp(),
        clipped_low_N=low_N,
        clipped_high_N=high_N,
    )


SPEC = Loss(
    "gmpo",
    gmpo_loss,
    words="geometric mean of clipped token ratios (GMPO)",
    bound="each token's log-ratio kept between −{clip_low} and {clip_high}",
    formula="−A·exp(mean of clipped log r)",
    source="arXiv 2507.20673",
    settings={"clip_low": "", "clip_high": ""},
    aggregations=("sequence_mean",),
    per_completion=True,
)
