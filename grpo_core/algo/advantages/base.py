"""What advantages are made from, and what comes out. Shapes: P groups (one per prompt) · G completions in each, the
shorter groups filled up with unscored places · C reward components · T tokens of one completion."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grpo_core.records.types import Signal


@dataclass(frozen=True)
class StepScores:
    """Everything a step knows before advantages: the groups of all ranks together."""

    rewards_PG: Tensor
    """float64; anything where not scored."""
    scored_PG: Tensor
    """bool; False for a sample without a reward: it is in no mean and no spread, and its advantage is 0."""
    lengths_PG: Tensor
    """Tokens of each completion, end token included; int64."""
    components_CPG: Tensor | None = None
    """Value of each reward component before weighting; for normalize_then_sum."""
    weights_C: Tensor | None = None
    """The components' weights."""
    token_penalties: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: β·KL of each token, to be taken off the reward; for kl.place reward."""
    step_rewards: Sequence[Sequence[Sequence[tuple[int, float]]]] | None = None
    """[p][g] → (place of the step's last token, its reward) in order; for supervision: process."""
    values: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: the critic's value before each token; for advantage: gae."""


@dataclass(frozen=True)
class Advantages:
    """What the step said about each of its completions."""

    advantages_PG: Tensor
    """float64. Where advantages differ from token to token, their mean over the completion's tokens."""
    tokens: Sequence[Sequence[Tensor]] | None
    """[p][g] → float64, shape T: the advantage of each token; None where all of a completion's tokens share one."""
    rewards_PG: Tensor
    """float64: the rewards as they were compared, after KL penalties."""
    mean_P: Tensor
    """Their mean over the group's scored samples; NaN where none is scored."""
    std_P: Tensor
    """Their standard deviation with the chosen ddof; NaN where fewer than two are scored."""
    signals: tuple[Signal, ...]
    """Whether the group's rewards, before KL penalties, differ."""
    informative_P: Tensor
    """bool: some advantage in the group is not 0."""
    returns: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: what the critic should have said; only with advantage: gae."""
