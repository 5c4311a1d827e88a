"""VESPO: the whole sequence's importance weight, reshaped so that neither very likely nor very unlikely completions
take over."""

import torch

from grpo_core.algo.losses.base import Surrogate, Tokens
from grpo_core.algo.losses.rows import row_sum
from grpo_core.config.algorithm import VespoConfig


def vespo_loss(tokens: Tokens, config: VespoConfig) -> Surrogate:
    """L = −sg[φ(w)]·A·log π, with φ(w) = e^λ · w^k · e^(−λw) and w = π/π_old of the whole row (the product).

    φ(1) = 1, so an unchanged policy has the plain policy gradient. k and λ are chosen by the sign of A. φ is made in
    log space, λ + k·log w − λw: for a w too large for the number format it is 0, its limit, and not a number that is
    none. Nothing is clipped.

    Source: VESPO (arXiv 2602.10693).
    """
    with torch.no_grad():
        log_w_N = row_sum(tokens.logprobs_N - tokens.old_logprobs_N, tokens.rows_N)
        negative_N = tokens.advantages_N < 0
        k_N = torch.where(negative_N, config.k_negative, torch.full_like(log_w_N, config.k_positive))
        decay_N = torch.where(negative_N, config.lambda_negative, torch.full_like(log_w_N, config.lambda_positive))
        # λ − λw = −λ·(w − 1); with λ 0 an infinite w would make it 0·∞.
        fall_N = torch.where(decay_N > 0, -decay_N * torch.expm1(log_w_N), torch.zeros_like(log_w_N))
        weight_N = torch.exp(k_N * log_w_N + fall_N)
        nowhere_N = torch.zeros_like(negative_N)
    return Surrogate(
        loss_N=-weight_N * tokens.advantages_N * tokens.logprobs_N, clipped_low_N=nowhere_N, clipped_high_N=nowhere_N
    )
