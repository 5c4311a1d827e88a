"""All estimators, and the fields of `algorithm` that they read. Loads no torch."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_core.advantages.base import Estimator, Scale, Scaling
from grpo_core.advantages.gae import CriticConfig
from grpo_core.specs.fields import Count, NotNegative, Part, specs_in

_ALL = sorted(specs_in("grpo_core.advantages", Estimator), key=lambda spec: spec.name != "group")
ESTIMATORS: dict[str, Estimator] = {spec.name: spec for spec in _ALL if spec.chosen_by == "advantage"}
"""By name; the default first."""
IN_PLACE_OF_GROUP = [spec for spec in _ALL if spec.chosen_by != "advantage"]
"""Those that a field other than `advantage` selects."""
if TYPE_CHECKING:
    EstimatorName = str
else:
    EstimatorName = Literal[tuple(ESTIMATORS)]


class AdvantageSettings(Part):
    advantage: EstimatorName = "group"
    """What a reward is compared with. group is GRPO's: the mean of its group; DAPO and Dr. GRPO share it and differ in
    `scale` and `aggregation`."""
    scale: Scale = "group_std"
    """What the centred reward is divided by: the group's standard deviation (GRPO), the whole batch's (Lite-PPO),
    or nothing (Dr. GRPO)."""
    std_ddof: Literal[0, 1] = 0
    """0: population standard deviation (divide by G). 1: sample standard deviation (divide by G−1), as TRL and verl
    do."""
    advantage_eps: NotNegative = Field(default=1e-4, title="Advantage ε (added to the std)")
    """Added to the standard deviation before dividing."""
    pass_k: Count | None = Field(default=None, title="k of Pass@k")
    """k of advantage: pass_at_k; needed with it and refused otherwise. Below G."""
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        default="sum_then_normalize", title="Several reward components"
    )
    """With several reward components: normalise their weighted sum (GRPO), or each one in its group and then sum
    (GDPO)."""
    supervision: Literal["outcome", "process"] = "outcome"
    """outcome: one reward for a completion. process: a reward at the end of each step; a token's advantage is the sum
    of the steps that end at it or later (DeepSeekMath, section 4.1.3)."""
    critic: CriticConfig = CriticConfig()
    """PPO's critic, with advantage: gae."""

    @property
    def estimator(self) -> Estimator:
        """The estimator in use: the one that replaces `group`, where one is chosen."""
        chosen = [spec for spec in IN_PLACE_OF_GROUP if getattr(self, spec.chosen_by) == spec.name]
        return (*chosen, ESTIMATORS[self.advantage])[0]

    @property
    def scaling(self) -> Scaling:
        return self.estimator.scales[self.scale]
