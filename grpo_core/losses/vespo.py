"""VESPO: the whole sequence's importance weight, reshaped so that neither very likely nor very unlikely completions
take over."""

from pydantic import Field

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens, unclipped
from grpo_core.specs.fields import NotNegative, Part


class VespoConfig(Part):
    k_positive: NotNegative = Field(default=2.0, title="VESPO k, positive advantages")
    """Power of the sequence ratio in VESPO's weight, for positive advantages."""
    lambda_positive: NotNegative = Field(default=3.0, title="VESPO λ, positive advantages")
    """Decay of that weight, for positive advantages."""
    k_negative: NotNegative = Field(default=3.0, title="VESPO k, negative advantages")
    """Power for negative advantages."""
    lambda_negative: NotNegative = Field(default=2.0, title="VESPO λ, negative advantages")
    """Decay for negative advantages."""


def vespo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −sg[φ(w)]·A·log π, with φ(w) = e^λ · w^k · e^(−λw) and w = π/π_old of the whole row (the product).

    φ(1) = 1, so an unchanged policy has the plain policy gradient. k and λ are chosen by the sign of A. φ is made in
    log space, λ + k·log w − λw: for a w too large for the number format it is 0, its limit, and not
    NaN. Nothing is clipped.

    Source: VESPO (arXiv 2602.10693).
    """
    import torch

    own = settings.vespo
    with torch.no_grad():
        log_w_N = tokens.row_sum(tokens.logprobs_N - tokens.old_logprobs_N)
        negative_N = tokens.advantages_N < 0
        k_N = torch.where(negative_N, own.k_negative, torch.full_like(log_w_N, own.k_positive))
        decay_N = torch.where(negative_N, own.lambda_negative, torch.full_like(log_w_N, own.lambda_positive))
        # λ − λw = −λ·(w − 1); with λ 0 an infinite w would make it 0·∞.
        fall_N = torch.where(decay_N > 0, -decay_N * torch.expm1(log_w_N), torch.zeros_like(log_w_N))
        weight_N = torch.exp(k_N * log_w_N + fall_N)
    return unclipped(-weight_N * tokens.advantages_N * tokens.logprobs_N)


SPEC = Loss(
    "vespo",
    vespo_loss,
    words="policy gradient with a smooth weight on each completion's ratio (VESPO)",
    bound="no clip: a smooth weight",
    formula="−sg[φ(w)]·A·log π, w the product of ratios",
    source="arXiv 2602.10693",
    settings={"vespo": ""},
    clips=False,
)
