"""What advantages are made from, and what an estimator's SPEC declares. Shapes: P groups (one per prompt) · G
completions in each, the shorter groups padded with unscored entries · C reward components · T tokens of one
completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
class GroupScores:
    """One group as its stored samples have it, in plain numbers: what its advantages are explained from. Every sequence
    is by sample."""

    rewards: Sequence[float | None]
    """As they were compared, after a KL penalty; None where not scored."""
    tokens: Sequence[int] = ()
    """Of each completion, end token included."""
    components: Sequence[Mapping[str, float]] = ()
    """Value of each reward component before weighting."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The components' weights."""
    step_rewards: Sequence[Sequence[float]] = ()
    """Of each step of a completion, in order."""

    @property
    def scored(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


@dataclass(frozen=True)
class Figures:
    """The numbers that a formula is filled with for one group: A = (value − baseline) · factor / divisor."""

    values: Sequence[float | None]
    """What is compared, by sample; None where not scored."""
    terms: Terms | None
    """None where a completion has no single advantage."""
    named: Mapping[str, float]
    """By the names in `Scaling.formula`."""
    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Further numbers of each sample, by their heading."""
    steps: Sequence[Sequence[tuple[float, float, float]]] = ()
    """By sample, of each step of its completion: (reward, A of the step alone, A of its tokens)."""
    zero_because: str = ""
    """Why every advantage of the group is 0; empty where they are not."""

    @property
    def advantages(self) -> list[float | None] | None:
        """By sample; None where a completion has no single one."""
        terms = self.terms
        if self.zero_because:
            return [None if value is None else 0.0 for value in self.values]
        if terms is None:
            return None
        return [
            None if value is None else (value - terms.baseline) * terms.factor / terms.divisor for value in self.values
        ]


NAMES = {
    "count": "n",
    "mean": "mean",
    "std": "std",
    "step_mean": "mean of the step",
    "step_std": "std of the step",
    "token_mean": "mean over the step's tokens",
    "token_std": "std over the step's tokens",
    "sum_mean": "mean of x over the step",
    "sum_std": "std of x over the step",
    "best_mean": "mean best of k",
    "best_std": "std of the best of k",
    "steps_mean": "mean of the group's steps",
    "steps_std": "std of the group's steps",
    "gamma": "γ",
    "gae_lambda": "λ",
}
"""Words of the names in formulas."""
_OF_STEP = ("step_", "token_", "sum_")


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
    """With names of NAMES in braces."""
    terms: Callable[[Statistics, AdvantageSettings], Terms] | None = None
    """The formula, where it needs no more than `Statistics`; else `Estimator.compute` has it."""
    usual: bool = True
    """Whether forms list it by default."""

    @property
    def uses_step(self) -> bool:
        """The scores of the whole step are needed."""
        return any(f"{{{name}" in self.formula for name in _OF_STEP)

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
    explain: Callable[[GroupScores, Sequence[GroupScores], AdvantageSettings], Figures] | None = None
    """`compute` for one group in plain numbers, to be shown: (the group, all groups of its step, settings). Where
    scalings have terms it needs none, and without either the advantages cannot be had from what is stored."""
    beyond_stored: str = ""
    """What else the advantages are made from, where that is not stored with the samples."""
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
