"""The clipped policy-gradient loss, per token.

Pure functions on tensors; nothing is masked or averaged here, `aggregation` does that. Shape: N tokens, any layout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Surrogate:
    """Loss of each token, and where the clip held it back."""

    loss_N: Tensor
    clipped_low_N: Tensor
    """True where the ratio fell below 1−ε_low with a negative advantage: the gradient there is 0."""
    clipped_high_N: Tensor
    """True where the ratio rose above 1+ε_high with a positive advantage: the gradient there is 0."""


def clipped_surrogate(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, clip_low: float, clip_high: float
) -> Surrogate:
    """L = −min(r·A, clip(r, 1−ε_low, 1+ε_high)·A), with r = exp(log π − log π_old) per token.

    Source: PPO (arXiv 1707.06347, eq. 7) with GRPO's group advantage (arXiv 2402.03300, eq. 3); unequal ε is DAPO's
    clip-higher (arXiv 2503.14476, section 3.1). To be minimised. `old_logprobs_N` carries no gradient. No token is
    masked here and there is no denominator: the result has one value per token.
    """
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    return Surrogate(
        loss_N=loss_N,
        clipped_low_N=(ratio_N < 1 - clip_low) & (advantages_N < 0),
        clipped_high_N=(ratio_N > 1 + clip_high) & (advantages_N > 0),
    )
