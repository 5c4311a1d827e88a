"""One step's scores to its advantages, by the estimator that the config names."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.advantages.base import Estimate, Estimator, Signal, Statistics, StepScores
from grpo_core.advantages.compare import Groups, all_equal, compare, deviation
from grpo_core.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class Advantages:
    """Of each completion of a step. Shapes: P groups (one per prompt) · G completions in each · T tokens of one."""

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
    """What varies in each group, before KL penalties."""
    informative_P: Tensor
    """bool: some advantage in the group is not 0."""
    returns: Sequence[Sequence[Tensor]] | None = None
    """[p][g] → float64, shape T: what the critic should have predicted; only with a critic."""


def step_advantages(scores: StepScores, algorithm: AlgorithmConfig) -> Advantages:
    """Advantages of all completions of a step.

    With `scores.token_penalties` the reward that is compared is r − Σ_t penalty_t; REINFORCE++ and the critic take the
    penalties token by token. Raises ValueError, naming group and completion, for NaN or infinity, and for a missing
    input that the estimator needs: both are bugs of the caller.
    """
    _refuse(scores, algorithm)
    compared = compare(_after_penalties(scores), scores.scored_PG, ddof=algorithm.std_ddof)
    estimator = algorithm.estimator
    if estimator.compute is None:
        estimate = Estimate(_from_terms(estimator, compared, algorithm))
    else:
        estimate = estimator.compute(scores, compared, algorithm)
    signals = scores.signals or _signals(compare(scores.rewards_PG, scores.scored_PG, ddof=0))
    if algorithm.gates_by_success:
        estimate = _without_phantoms(estimate, signals)
    tokens, advantages_PG = estimate.tokens, estimate.advantages_PG
    if tokens is not None:
        advantages_PG = torch.tensor(
            [[float(values_T.mean()) if len(values_T) else 0.0 for values_T in row] for row in tokens],
            dtype=torch.float64,
        )
        informative_P = torch.tensor([any(bool((values_T != 0).any()) for values_T in row) for row in tokens])
    else:
        assert advantages_PG is not None, f"estimator {estimator.name} gave no advantages"
        informative_P = (advantages_PG != 0).any(dim=1)
    return Advantages(
        advantages_PG=advantages_PG,
        tokens=tokens,
        rewards_PG=compared.rewards_PG,
        mean_P=compared.mean_P,
        std_P=compared.std_P,
        signals=tuple(signals),
        informative_P=informative_P,
        returns=estimate.returns,
    )


def _from_terms(estimator: Estimator, groups: Groups, algorithm: AlgorithmConfig) -> Tensor:
    """(r − baseline) · factor / divisor of each completion; exactly 0 where not scored, where the rewards that are
    compared are equal and where the estimator has no meaning. Shape PG."""
    terms_of = estimator.scales[algorithm.scale].terms
    assert terms_of is not None, f"estimator {estimator.name} has neither terms nor compute"
    step_N = groups.rewards_PG[groups.scored_PG]
    statistics = Statistics(
        count=groups.count_P[:, None].to(torch.float64),  # a quotient of whole numbers would be float32
        mean=groups.mean_P[:, None],
        std=groups.std_P[:, None],
        largest=torch.where(groups.scored_PG, groups.rewards_PG.abs(), 0.0).amax(dim=1, keepdim=True).clamp(min=1.0),
        step_mean=step_N.mean(),
        step_std=deviation(step_N, algorithm.std_ddof),
    )
    terms = terms_of(statistics, algorithm)
    advantages_PG = (groups.rewards_PG - terms.baseline) * terms.factor / terms.divisor
    used_PG = groups.scored_PG & terms.usable
    match estimator.zero_when_equal:
        case "group":
            used_PG = used_PG & groups.mixed_P[:, None]
        case "step" if all_equal(step_N):
            used_PG = torch.zeros_like(used_PG)
    return torch.where(used_PG, advantages_PG, torch.zeros_like(advantages_PG))


def _after_penalties(scores: StepScores) -> Tensor:
    rewards_PG = scores.rewards_PG.to(torch.float64)
    if scores.token_penalties is None:
        return rewards_PG
    rewards_PG = rewards_PG.clone()
    for p, g in scores.scored_PG.nonzero().tolist():
        rewards_PG[p, g] -= scores.token_penalties[p][g].to(torch.float64).sum()
    return rewards_PG


def _signals(raw: Groups) -> tuple[Signal, ...]:
    return tuple(
        "unscored" if not enough else "mixed" if mixed else "all_equal"
        for enough, mixed in zip(raw.enough_P.tolist(), raw.mixed_P.tolist(), strict=True)
    )


def _without_phantoms(estimate: Estimate, signals: Sequence[Signal]) -> Estimate:
    """The estimate with advantages of 0 in groups in which shaping alone varies."""
    phantom_P = torch.tensor([signal == "phantom" for signal in signals])
    tokens, advantages_PG = estimate.tokens, estimate.advantages_PG
    if advantages_PG is not None:
        advantages_PG = advantages_PG.masked_fill(phantom_P[:, None], 0.0)
    if tokens is not None:
        tokens = [
            [torch.zeros_like(values_T) for values_T in row] if phantom else row
            for row, phantom in zip(tokens, phantom_P.tolist(), strict=True)
        ]
    return replace(estimate, advantages_PG=advantages_PG, tokens=tokens)


# ---------------------------------------------------------------------- bugs of the caller


def _refuse(scores: StepScores, algorithm: AlgorithmConfig) -> None:
    """Raises ValueError for input that would silently make every later number wrong."""
    if algorithm.multi_objective_aggregation == "normalize_then_sum" and scores.token_penalties is not None:
        raise ValueError(
            "normalize_then_sum compares reward components one by one: there is no one reward to take KL penalties off"
        )
    for p, g in scores.scored_PG.nonzero().tolist():
        length = int(scores.lengths_PG[p, g])
        if length < 1:
            raise ValueError(f"group {p}, completion {g} is scored and has no tokens")
        for what, value in _numbers(scores, p, g, length):
            if not math.isfinite(value):
                raise ValueError(f"{what} of group {p}, completion {g} is {value}; mark it unscored or mend its source")


def _numbers(scores: StepScores, p: int, g: int, length: int) -> Iterator[tuple[str, float]]:
    """Every number of one completion with its name; a tensor of tokens is given by its sum."""
    yield "the reward", float(scores.rewards_PG[p, g])
    if scores.components_CPG is not None:
        for c, value in enumerate(scores.components_CPG[:, p, g].tolist()):
            yield f"reward component {c}", value
    for what, tokens in (("KL penalties", scores.token_penalties), ("values", scores.values)):
        if tokens is not None:
            if tokens[p][g].shape != (length,):
                raise ValueError(
                    f"{what} of group {p}, completion {g} have shape {tuple(tokens[p][g].shape)} for {length} tokens"
                )
            yield f"a token of the {what}", float(tokens[p][g].sum())
    if scores.step_rewards is not None:
        _ordered([index for index, _ in scores.step_rewards[p][g]], length, p, g)
        for index, value in scores.step_rewards[p][g]:
            yield f"the step reward at token {index}", value


def _ordered(indices: Sequence[int], length: int, p: int, g: int) -> None:
    if any(not 0 <= index < length for index in indices) or list(indices) != sorted(indices):
        raise ValueError(
            f"steps of group {p}, completion {g} end at tokens {list(indices)}, not in order within its {length}"
        )
