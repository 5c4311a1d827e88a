"""What advantages are made from, and what an estimator's SPEC declares. Shapes: P groups (one per prompt) · G
completions in each, the shorter groups padded with unscored entries · C reward components · T tokens of one
completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor as Tensor

    from grpo_core.advantages.compare import Groups
    from grpo_core.advantages.settings import AdvantageSettings as AdvantageSettings
else:  # a SPEC is read where there is no torch
    Tensor = AdvantageSettings = Any

Scale = Literal["group_std", "batch_std", "none"]
Signal = Literal["mixed", "phantom", "all_equal", "unscored"]
"""mixed: success differs in the group, and so do rewards. phantom: rewards differ and success does not. all_equal: what
is compared does not differ. unscored: fewer than two completions are scored."""


@dataclass(frozen=True)
class Statistics:
    """What rewards are compared with: tensors while training, plain numbers where one group is explained.

    Of a group: count of scored completions, mean, standard deviation, the largest |reward| and at least 1. Of the step:
    mean and standard deviation of all scored rewards. Standard deviations are with `std_ddof`."""

    count: Any
    mean: Any
    std: Any
    largest: Any
    step_mean: Any
    step_std: Any


@dataclass(frozen=True)
class Terms:
    """A = (r − baseline) · factor / divisor; 0 where not usable."""

    baseline: Any
    factor: Any = 1
    divisor: Any = 1
    usable: Any = True


@dataclass(frozen=True)
class Scaling:
    """An estimator with one `algorithm.scale`. In texts {std} stands for the standard deviation of `std_ddof`, {eps}
    for `advantage_eps`, and every other name for the setting of that name."""

    label: str
    """In forms; a label with {std} divides by a standard deviation whose ddof matters."""
    short: str
    """For the column of a table."""
    help: str
    words: str
    """For records."""
    formula: str
    """In names of `Statistics`, in braces."""
    terms: Callable[[Statistics, AdvantageSettings], Terms] | None = None
    """The formula, where it needs no more than `Statistics`; else `Estimator.compute` has it."""
    usual: bool = True
    """Whether forms list it by default."""

    @property
    def divides(self) -> bool:
        return "{std}" in self.label


@dataclass(frozen=True)
class Estimate:
    """What an estimator computes: `advantages_PG` or `tokens`, and for a critic what it learns."""

    advantages_PG: Tensor | None = None
    """float64; 0 where not scored."""
    tokens: list[list[Tensor]] | None = None
    """[p][g] → float64, shape T: the advantage of each token."""
    returns: list[list[Tensor]] | None = None


@dataclass(frozen=True)
class Estimator:
    """A value of `algorithm.advantage`, as its own file declares it."""

    name: str
    method: tuple[str, str]
    """(short name, in words) of training with it."""
    compared_with: Literal["group", "step", "critic"]
    source: str
    scales: Mapping[Scale, Scaling]
    """The divisors that its paper uses."""
    help: str
    """What a reward is compared with, in few words."""
    compute: Callable[[StepScores, Groups, AdvantageSettings], Estimate] | None = None
    """None where every scaling has its terms."""
    equal_rewards: str = "Their advantages are 0."
    """Of groups with equal rewards, for records."""
    zero_when_equal: Literal["group", "step", "never"] = "group"
    """Whose equal rewards make an advantage exactly 0."""
    settings: tuple[str, ...] = ()
    """Fields of `algorithm` that it alone reads."""
    needed: str | None = None
    """The one of them without a default, with its meaning: "pass_k, the number of tries …"."""
    per_token: Literal["always", "with_kl_reward", "never"] = "never"
    """When advantages differ from token to token."""
    critic: bool = False
    """Trains a critic along with the policy."""
    chosen_by: str = "advantage"
    """The field of `algorithm` that selects it. A field other than `advantage` replaces estimator `group` by it."""

    @property
    def learns_from_equal(self) -> bool:
        """A group of equal rewards has a gradient."""
        return self.zero_when_equal != "group"


@dataclass(frozen=True)
class StepScores:
    """Everything a step knows before advantages: the groups of all ranks together."""

    rewards_PG: Tensor
    """float64; anything where not scored."""
    scored_PG: Tensor
    """bool; False for a sample without a reward: it is in no mean and no spread, and its advantage is 0."""
    lengths_PG: Tensor
    """Tokens of each completion, end token included; int64."""
    signals: Sequence[Signal] | None = None
    """Of each group; None takes them from the rewards, without phantoms."""
    components_CPG: Tensor | None = None
    """Value of each reward component before weighting; for normalize_then_sum."""
    weights_C: Tensor | None = None
    """The components' weights."""
    token_penalties: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: β·KL of each token, to be subtracted from the reward; for kl.place reward."""
    step_rewards: Sequence[Sequence[Sequence[tuple[int, float]]]] | None = None
    """[p][g] → (index of the step's last token, its reward) in order; for supervision: process."""
    values: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: the critic's value before each token."""

    def given(self, name: str) -> Any:
        """An input that the estimator needs. Raises ValueError where the caller gave none."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this estimator needs {name}, and StepScores has none")
        return value
