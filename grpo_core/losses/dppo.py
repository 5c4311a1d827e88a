"""DPPO: a token is left out when its probability, not its ratio, has moved too far already."""

from typing import Literal

from pydantic import Field

from grpo_core.errors import Conflict
from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tensor, Tokens
from grpo_core.specs.fields import Part, Positive


class DppoConfig(Part):
    divergence: Literal["tv", "kl"] = Field(default="tv", title="DPPO divergence")
    """How far a token's probability has moved: tv, the difference of the two probabilities; kl, the divergence of
    taking this token or not."""
    threshold: Positive = Field(default=0.15, title="DPPO threshold")
    """A token beyond this, in the direction of its advantage, gives no gradient."""


def dppo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −r·A where the token is kept and 0 where it is dropped, with r = π/π_old per token.

    Dropped: π has moved from π_old in the direction of A (above it for a positive, below it for a negative advantage)
    and further than `threshold`. How far, from this token's probability p now and q before:

    tv  |p − q|
    kl  q·log(q/p) + (1−q)·log((1−q)/(1−p)), the KL divergence of "this token or another one"

    So a rare token may double or halve freely, which a ratio's clip forbids, and a likely one may not.

    π_old is the policy that sampled, μ in the paper: `tokens.old_logprobs_N` are to be the sampler's own
    log-probabilities. So r corrects between sampler and trainer already, and no weight for that belongs on this loss.

    Source: DPPO (arXiv 2602.04879): loss, equation 11; mask, equation 12; the binary divergences, equations 13 (tv) and
    14 (kl). The paper's threshold is 0.15 with tv for dense models (0.2 for mixtures of experts, as a secondary source
    says) and 0.05 with kl. r is not truncated.
    """
    now_N, before_N = tokens.logprobs_N.detach(), tokens.old_logprobs_N.detach()
    tv = settings.dppo.divergence == "tv"
    moved_N = (now_N.exp() - before_N.exp()).abs() if tv else _binary_kl(before_N, now_N)
    far_N = moved_N > settings.dppo.threshold
    low_N = far_N & (now_N < before_N) & (tokens.advantages_N < 0)
    high_N = far_N & (now_N > before_N) & (tokens.advantages_N > 0)
    dropped_N = low_N | high_N
    log_ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).masked_fill(dropped_N, 0.0)
    return Surrogate(
        loss_N=(-log_ratio_N.exp() * tokens.advantages_N).masked_fill(dropped_N, 0.0),
        clipped_low_N=low_N,
        clipped_high_N=high_N,
    )


def _binary_kl(log_q_N: Tensor, log_p_N: Tensor) -> Tensor:
    """KL of two coins that show heads with q and p."""
    other_q_N, other_p_N = _other(log_q_N), _other(log_p_N)
    return log_q_N.exp() * (log_q_N - log_p_N) + other_q_N * (other_q_N / other_p_N).log()


def _other(log_p_N: Tensor) -> Tensor:
    """1 − p, at least the number format's epsilon: for a smaller one log-softmax rounds log p to 0."""
    import torch

    return (-torch.expm1(log_p_N)).clamp(min=torch.finfo(log_p_N.dtype).eps)


def _bound(settings: LossSettings) -> str:
    far = "divergence" if settings.dppo.divergence == "kl" else "difference of probabilities"
    return f"no clip of the ratio: no gradient beyond a {far} of {{threshold}}"


def _conflict(settings: LossSettings) -> Conflict | None:
    if settings.dppo.divergence == "kl" or settings.dppo.threshold < 1:
        return None
    return Conflict(
        "dppo_threshold_too_high",
        f"dppo.threshold {settings.dppo.threshold:g} can never be passed: two probabilities differ by less than 1 "
        "(tv); the paper used 0.15",
        field="dppo.threshold",
    )


SPEC = Loss(
    "dppo",
    dppo_loss,
    words="policy gradient that stops at a divergence (DPPO)",
    bound=_bound,
    formula="−r·A unless π has moved too far",
    source="arXiv 2602.04879",
    settings={"dppo": ""},
    by_token=True,
    ratio="sampler",
    conflict=_conflict,
)
