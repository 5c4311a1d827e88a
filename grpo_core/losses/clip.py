"""PPO's clipped surrogate, which GRPO, BNPO, DAPO and Dr. GRPO share: they differ in how tokens are averaged."""

from grpo_core.errors import Conflict
from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tensor, Tokens


def clip_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −min(r·A, clip(r, 1−ε_low, 1+ε_high)·A), with r = exp(log π − log π_old) per token; to be minimised.

    With `clip_delta`, r in the first product is at most δ: the loss of a negative advantage stops growing there.
    Two-sided clipping and dual-clip PPO are both this formula (docs/losses/two-sided-and-dual-clip.md); δ is above
    1+ε_high.

    Source: PPO (arXiv 1707.06347, equation 7) with GRPO's advantage (arXiv 2402.03300, equation 3). Unequal ε is
    DAPO's clip-higher (arXiv 2503.14476, section 3.1), δ INTELLECT-2's two-sided clipping (arXiv 2505.07291; its 4:
    section 4.1).
    """
    ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).exp()
    low, high = settings.clip_low, settings.clip_high
    return clipped(ratio_N, tokens.advantages_N, low=low, high=high, delta=settings.clip_delta)


def clipped(ratio_N: Tensor, advantages_N: Tensor, *, low: float, high: float, delta: float | None = None) -> Surrogate:
    """The clipped surrogate of any ratio, of a token or of its whole row."""
    bounded_N = ratio_N if delta is None else ratio_N.clamp(max=delta)
    inside_N = ratio_N.clamp(1 - low, 1 + high)
    up_N = (ratio_N > 1 + high) & (advantages_N > 0)
    if delta is not None:
        up_N = up_N | ((ratio_N > delta) & (advantages_N < 0))
    return Surrogate(
        loss_N=-(bounded_N * advantages_N).minimum(inside_N * advantages_N),
        clipped_low_N=(ratio_N < 1 - low) & (advantages_N < 0),
        clipped_high_N=up_N,
    )


def _bound(settings: LossSettings) -> str:
    most = "; where the advantage is negative it counts as at most {clip_delta}"
    return "ratio kept between 1 − {clip_low} and 1 + {clip_high}" + ("" if settings.clip_delta is None else most)


def _conflict(settings: LossSettings) -> Conflict | None:
    if settings.clip_delta is None or settings.clip_delta > 1 + settings.clip_high:
        return None
    return Conflict(
        "clip_delta_too_low",
        f"clip_delta must be above 1 + clip_high = {1 + settings.clip_high:g}, or the upper clip never acts",
        field="clip_delta",
    )


SPEC = Loss(
    "clip",
    clip_loss,
    words="clipped policy gradient",
    bound=_bound,
    formula="−min(r·A, clip(r, 1 ± ε)·A)",
    source="arXiv 1707.06347, 2402.03300",
    settings={"clip_low": "", "clip_high": "", "clip_delta": ""},
    by_token=True,
    conflict=_conflict,
)
