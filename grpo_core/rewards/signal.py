"""What varies in a group, and so whether there is anything to learn from it. Dynamic sampling, advantages, records,
metrics, the words at the end and the lab all read it here. Loads no torch.

A group in which only shaping varies (length, format, the overlong punishment) has a spread, and is divided by it: its
advantages are as large as those of a group in which some succeed. "phantom" names it, and `algorithm.signal_gate`
decides whether it is learned from. DAPO's condition for dynamic sampling (arXiv 2503.14476, equation 11) is the gate
`success`: it counts right answers.
"""

from collections.abc import Sequence

from grpo_core.advantages.base import Signal
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.reward import RewardConfig
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.kinds.soft_overlong import soft_overlong_punishment
from grpo_core.rewards.rubric import Scored
from grpo_core.stats.paired import nearly_equal

OVERLONG = "overlong"
"""Component name of the soft overlong punishment."""


def component_weights(reward: RewardConfig, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Weight of every reward component, the soft overlong punishment among them."""
    factors = {component.name: component.weight for component in reward.components}
    overlong = algorithm.overlong
    return factors | ({OVERLONG: overlong.penalty} if overlong.buffer_tokens is not None else {})


def with_overlong(score: Scored, tokens: int, algorithm: AlgorithmConfig, *, longest: int) -> Scored:
    """The score of a completion of so many tokens with the soft overlong punishment, where `algorithm` asks for one.
    `longest`: sampling.max_completion_tokens."""
    overlong = algorithm.overlong
    if overlong.buffer_tokens is None:
        return score
    value = soft_overlong_punishment(tokens, max_tokens=longest, buffer_tokens=overlong.buffer_tokens)
    component = ComponentScore(value=value, detail=f"{tokens:,} of {longest:,} tokens")
    reward = None if score.reward is None else score.reward + overlong.penalty * value
    return Scored(reward, {**score.components, OVERLONG: component})


def signal_of(scores: Sequence[Scored], reward: RewardConfig, algorithm: AlgorithmConfig) -> Signal:
    """Of one group, before KL penalties."""
    rewards = [score.reward for score in scores if score.reward is not None]
    if len(rewards) < 2:
        return "unscored"
    components = [score.components for score in scores if score.reward is not None]
    columns = [rewards]
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        columns = [_values(components, name) for name in components[0]]
    steps = [_steps(components, name, algorithm) for name in components[0]]
    if all(nearly_equal(column) for column in columns) and nearly_equal([step for own in steps for step in own]):
        return "all_equal"
    success = reward.success_of(components[0])
    own = _values(components, success), _steps(components, success, algorithm)
    return "phantom" if all(nearly_equal(column) for column in own) else "mixed"


def _values(components: Sequence[dict[str, ComponentScore]], name: str) -> list[float]:
    return [own[name].value or 0.0 for own in components]


def _steps(components: Sequence[dict[str, ComponentScore]], name: str, algorithm: AlgorithmConfig) -> list[float]:
    """The rewards of single steps, which process supervision compares."""
    if algorithm.supervision != "process":
        return []
    return [step.value for own in components for step in own[name].steps or ()]
