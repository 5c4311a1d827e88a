"""CISPO: the importance weight is bounded and not the update, so every token keeps a gradient."""

from grpo_core.errors import Conflict
from grpo_core.losses.base import Loss, LossSettings, Surrogate, Tokens


def cispo_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −sg[w]·A·log π, with w the token's ratio π/π_old, held by `cispo_bound` between 1−ε_low and 1+ε_high
    (relative) or at ε_high itself from above, without a lower bound (absolute). sg stops the gradient: the gradient is
    −w·A·∇log π, never 0.

    Source: MiniMax-M1 (arXiv 2506.13585, equations 4 and 5), which bounds w at 1+ε and switches the lower bound off.
    ScaleRL (arXiv 2510.13786, equation 4) bounds w at 5 itself.
    """
    relative = settings.cispo_bound == "relative"
    low = 1 - settings.clip_low if relative else None
    high = 1 + settings.clip_high if relative else settings.clip_high
    ratio_N = (tokens.logprobs_N - tokens.old_logprobs_N).detach().exp()
    low_N = ratio_N < (-1.0 if low is None else low)  # a ratio is never below 0
    return Surrogate(
        loss_N=-ratio_N.clamp(low, high) * tokens.advantages_N * tokens.logprobs_N,
        clipped_low_N=low_N & (tokens.advantages_N < 0),
        clipped_high_N=(ratio_N > high) & (tokens.advantages_N > 0),
    )


def _bound(settings: LossSettings) -> str:
    absolute = settings.cispo_bound == "absolute"
    held = "at or below {clip_high}" if absolute else "between 1 − {clip_low} and 1 + {clip_high}"
    return f"each token's weight kept {held}; no token loses its gradient"


def _conflict(settings: LossSettings) -> Conflict | None:
    if settings.cispo_bound == "relative" or settings.clip_high >= 1:
        return None
    return Conflict(
        "cispo_bound_below_one",
        f"cispo_bound absolute would hold every weight at {settings.clip_high:g}, below the ratio 1 of an unchanged "
        "policy; give clip_high as the largest weight (ScaleRL used 5), or use cispo_bound: relative",
        field="cispo_bound",
    )


SPEC = Loss(
    "cispo",
    cispo_loss,
    words="policy gradient weighed by a bounded ratio (CISPO)",
    bound=_bound,
    formula="−sg[bounded r]·A·log π",
    source="arXiv 2506.13585",
    settings={"clip_low": "cispo_bound: relative", "clip_high": "", "cispo_bound": ""},
    by_token=True,
    conflict=_conflict,
)
