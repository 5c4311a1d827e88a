"""SAPO: a soft gate in place of the clip; the further the ratio is from 1, the weaker the gradient."""

from pydantic import Field

from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens, unclipped
from grpo_core.specs.fields import Part, Positive


class SapoConfig(Part):
    tau_positive: Positive = Field(default=1.0, title="SAPO τ, positive advantages")
    """Temperature of SAPO's soft gate for positive advantages. The paper used 1.0."""
    tau_negative: Positive = Field(default=1.05, title="SAPO τ, negative advantages")
    """The same for negative ones. The paper used 1.05."""


def sapo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −A·(4/τ)·σ(τ·(r − 1)), with r = π/π_old per token, σ the logistic function and τ by the sign of A.

    The factor 4/τ makes the slope at r = 1 exactly −A. The value there is −2A/τ and has no meaning. Nothing is clipped.

    Source: SAPO (arXiv 2511.20347), with τ 1.0 for positive and 1.05 for negative advantages.
    """
    import torch

    ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).exp()
    negative_N = torch.full_like(ratio_N, settings.sapo.tau_negative)
    tau_N = torch.where(tokens.advantages_N > 0, settings.sapo.tau_positive, negative_N)
    return unclipped(-tokens.advantages_N * (4 / tau_N) * (tau_N * (ratio_N - 1)).sigmoid())


SPEC = Loss(
    "sapo",
    sapo_loss,
    words="softly gated policy gradient (SAPO)",
    bound="no clip: a soft gate with τ {tau_positive} and {tau_negative}",
    formula="−A·(4/τ)·σ(τ(r − 1))",
    source="arXiv 2511.20347",
    settings={"sapo": ""},
    by_token=True,
    clips=False,
)
