"""All losses, and the fields of `algorithm` that they read. Loads no torch."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_core.losses.base import Loss
from grpo_core.losses.dppo import DppoConfig
from grpo_core.losses.sapo import SapoConfig
from grpo_core.losses.vespo import VespoConfig
from grpo_core.specs.fields import NotNegative, Part, Positive, Share, specs_in

LOSSES: dict[str, Loss] = {
    spec.name: spec for spec in sorted(specs_in("grpo_core.losses", Loss), key=lambda spec: spec.name != "clip")
}
"""By name; the default first."""
if TYPE_CHECKING:
    LossName = str
else:
    LossName = Literal[tuple(LOSSES)]


class LossSettings(Part):
    loss: LossName = Field(default="clip", title="Policy loss")
    """The policy loss. clip is PPO's clipped surrogate, which GRPO, DAPO and Dr. GRPO share; they differ in
    `aggregation`."""
    clip_low: Share = Field(default=0.2, title="Clip low ε")
    """ε below: the probability ratio is clipped at 1−ε. Papers use 0.2."""
    clip_high: NotNegative = Field(default=0.2, title="Clip high ε")
    """ε above: the ratio is clipped at 1+ε. 0.2 as in PPO (DeepSeekMath names none), 0.28 in DAPO (clip-higher)."""
    clip_delta: Positive | None = Field(default=None, title="Ratio bound δ (two-sided clip, dual clip)")
    """Largest ratio that counts where the advantage is negative: δ of two-sided clipping (INTELLECT-2 used 4) and c of
    dual-clip PPO (3), which are one formula. Above 1+clip_high. Empty: no bound."""
    cispo_bound: Literal["absolute", "relative"] = Field(default="absolute", title="CISPO bound")
    """Where CISPO holds its weight. absolute: at clip_high itself (ScaleRL used 5), without a lower bound. relative:
    between 1−clip_low and 1+clip_high."""
    sapo: SapoConfig = SapoConfig()
    """Settings of loss: sapo."""
    vespo: VespoConfig = VespoConfig()
    """Settings of loss: vespo."""
    dppo: DppoConfig = DppoConfig()
    """Settings of loss: dppo."""

    @property
    def loss_spec(self) -> Loss:
        return LOSSES[self.loss]
