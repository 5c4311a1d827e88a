"""Divergence of the policy from another one: its estimators per token, and the controller of its weight."""

import torch
from torch import Tensor

from grpo_core.config.algorithm import KLEstimator

_LARGEST_ERROR = 0.2


def kl_estimate(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KLEstimator) -> Tensor:
    """KL(π ‖ π_ref) estimated from tokens that π sampled; with d = log π_ref − log π:

    k1 = −d           unbiased; its gradient has mean 0, so in the loss it adds noise and no pull
    k2 = d²/2         biased value, never negative; its gradient is that of the KL divergence
    k3 = e^d − d − 1  unbiased and never negative; its gradient is not that of the KL divergence
    k3_plus           the value of k3 with the gradient of k2

    All are exactly 0 where the two policies agree. `reference_logprobs_N`, of the reference or of the old policy,
    carries no gradient. Nothing is masked here and there is no denominator; `aggregation` has the weights.

    The gradients above are those of the estimate in the loss. Taken off the reward, no gradient passes through it: its
    policy gradient is that of the divergence with k1 and another one with k2 and k3; k3_plus is k3 there.

    Nothing is clamped: a clamp takes away the pull where it is needed most. In float32 k3 is infinite for d above 88,
    a token that the policy has made e^88 times less likely; the loss is infinite then and the step ends with an error.

    Source: Schulman 2020, "Approximating KL divergence"; k3 in GRPO: arXiv 2402.03300, equation 4.
    """
    d_N = reference_logprobs_N - logprobs_N
    match estimator:
        case "k1":
            return -d_N
        case "k2":
            return 0.5 * d_N.square()
        case "k3":
            return torch.expm1(d_N) - d_N
        case "k3_plus":
            pull_N = 0.5 * d_N.square()
            return (torch.expm1(d_N) - d_N).detach() + (pull_N - pull_N.detach())


def adapted_coef(coef: float, kl_nats: float, *, target_nats: float, horizon: int, completions: int) -> float:
    """β after an update that saw `completions` completions with a mean KL of `kl_nats` per completion:

    β · (1 + e · completions / horizon), with e = (kl_nats − target_nats) / target_nats, held within ±0.2.

    Source: error and bound are Ziegler et al. 2019 (arXiv 1909.08593, section 2.2); the factor with completions over
    horizon is that of the code OpenAI published with it, lm-human-preferences (train_policy.py, horizon in episodes).
    Raises ValueError where β could reach 0 in one update,
    which it could never leave: `completions` must be less than 5 · `horizon`.
    """
    if completions * _LARGEST_ERROR >= horizon:
        raise ValueError(
            f"kl.horizon {horizon} is too short for updates of {completions} completions: the coefficient could reach "
            f"0 in one; take more than {completions / 5:g}"
        )
    error = min(max(kl_nats / target_nats - 1, -_LARGEST_ERROR), _LARGEST_ERROR)
    return coef * (1 + error * completions / horizon)
