"""Estimators of the divergence from the reference policy, per token (Schulman, "Approximating KL divergence", 2020)."""

import torch
from torch import Tensor

from grpo_core.config import KLEstimator


def kl_estimate(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KLEstimator) -> Tensor:
    """KL(π ‖ π_ref) estimated from tokens that π sampled; with d = log π_ref − log π:

    k1 = −d          unbiased; its gradient has mean 0, so in the loss it adds noise and no pull
    k2 = d²/2        biased value, never negative; its gradient is that of the KL divergence
    k3 = e^d − d − 1  unbiased and never negative; GRPO's choice (arXiv 2402.03300, eq. 4)

    All are exactly 0 where the two policies agree. Nothing is masked here and there is no denominator; the caller
    weights tokens as it does those of the policy loss. `reference_logprobs_N` carries no gradient.
    """
    d_N = reference_logprobs_N - logprobs_N
    match estimator:
        case "k1":
            return -d_N
        case "k2":
            return 0.5 * d_N.square()
        case "k3":
            return torch.expm1(d_N) - d_N
