"""Policy losses, per token: one file each, chosen by `algorithm.loss`.

Pure functions on tensors. Nothing is masked or averaged here: `masks` and `aggregation` do that.
"""

from grpo_core.algo.losses.base import Surrogate, Tokens
from grpo_core.algo.losses.cispo import cispo_loss
from grpo_core.algo.losses.clip import clip_loss
from grpo_core.algo.losses.dppo import dppo_loss
from grpo_core.algo.losses.gmpo import gmpo_loss
from grpo_core.algo.losses.gspo import gspo_loss
from grpo_core.algo.losses.gspo_token import gspo_token_loss
from grpo_core.algo.losses.luspo import luspo_loss
from grpo_core.algo.losses.reinforce import reinforce_loss
from grpo_core.algo.losses.sapo import sapo_loss
from grpo_core.algo.losses.sequence_ratio import sequence_ratio_loss
from grpo_core.algo.losses.vespo import vespo_loss
from grpo_core.config.algorithm import AlgorithmConfig

__all__ = ["Surrogate", "Tokens", "policy_loss"]


def policy_loss(tokens: Tokens, algorithm: AlgorithmConfig) -> Surrogate:
    """The loss that `algorithm.loss` names, with its settings. docs/losses/ has a page for each."""
    low, high = algorithm.clip_low, algorithm.clip_high
    match algorithm.loss:
        case "clip":
            return clip_loss(tokens, low=low, high=high, delta=algorithm.clip_delta)
        case "gspo":
            return gspo_loss(tokens, low=low, high=high)
        case "gspo_token":
            return gspo_token_loss(tokens, low=low, high=high)
        case "gmpo":
            return gmpo_loss(tokens, low=low, high=high)
        case "cispo":
            if algorithm.cispo_bound == "absolute":
                return cispo_loss(tokens, low=None, high=high)
            return cispo_loss(tokens, low=1 - low, high=1 + high)
        case "sapo":
            sapo = algorithm.sapo
            return sapo_loss(tokens, tau_positive=sapo.tau_positive, tau_negative=sapo.tau_negative)
        case "vespo":
            return vespo_loss(tokens, algorithm.vespo)
        case "luspo":
            return luspo_loss(tokens, low=low, high=high)
        case "dppo":
            return dppo_loss(tokens, divergence=algorithm.dppo.divergence, threshold=algorithm.dppo.threshold)
        case "sequence_ratio":
            return sequence_ratio_loss(tokens)
        case "reinforce":
            return reinforce_loss(tokens)
