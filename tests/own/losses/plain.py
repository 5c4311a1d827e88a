"""plain: the ratio of each token times its advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.losses.base import Loss, Surrogate, Tokens, unclipped

if TYPE_CHECKING:
    from grpo_core.losses.settings import LossSettings


def plain_loss(tokens: Tokens, settings: LossSettings) -> Surrogate:
    """L = −r·A."""
    return unclipped(-(tokens.logprobs_N - tokens.old_logprobs_N).exp() * tokens.advantages_N)


SPEC = Loss(
    "plain",
    plain_loss,
    words="unclipped ratio of each token",
    bound="none: nothing is clipped",
    formula="−r·A",
    source="nobody",
    by_token=True,
    clips=False,
    bounded=False,
)
