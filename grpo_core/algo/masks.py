"""Which tokens give a policy gradient. Each mask is True for a token that is kept.

A token left out here stays in the denominators, as in the papers' formulas: it has loss 0, and the others' weights
do not grow. Masks that leave numerator and denominator together (no reward, truncated, importance) are
`RowFacts.used`. KL penalty and entropy bonus ignore these masks. Shapes as in `losses.base`.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from grpo_core.losses.base import Tokens


def off_policy_keep(tokens: Tokens, threshold: float) -> Tensor:
    """bool, shape N: False where the advantage is negative and mean(log π_old − log π) over the row is above
    `threshold`, in nats per token: a completion to be made less likely that has become so already.

    π_old is the sampler's: below equation 9 the paper says that it is the sampling probability which the inference
    framework returned. `tokens.old_logprobs_N` are to be those (the trainer's where the sampler gave none), so that the
    mismatch between the two counts as well.

    No gradient passes. Source: DeepSeek-V3.2 (arXiv 2512.02556, equation 9).
    """
    fall_N = tokens.row_mean((tokens.old_logprobs_N - tokens.logprobs_N).detach())
    return (tokens.advantages_N >= 0) | (fall_N <= threshold)


def entropy_threshold(entropies: Tensor, share: float) -> float:
    """The least entropy of the ⌈share · M⌉ highest of M, for `high_entropy_keep`; −∞ of none.

    `entropies` are those of all tokens in use of one optimiser update, over all ranks and micro-batches. `share` is
    taken as the decimal number it is written as, so that 0.07 of 100 tokens are 7 and not 8.
    """
    count = len(entropies)
    if count == 0:
        return -math.inf
    kept = math.ceil(Fraction(str(share)) * count)
    return torch.kthvalue(entropies, count - kept + 1).values.item()


def high_entropy_keep(entropies_N: Tensor, threshold: float) -> Tensor:
    """bool, shape N: True where the entropy is `threshold` or above. Where tokens tie at the threshold all of them are
    kept, so the share is never smaller than requested.

    Source: "Beyond the 80/20 Rule" (arXiv 2506.01939), which keeps a fifth.
    """
    return entropies_N >= threshold
