"""One step's scores to its advantages, by the estimator that the config names."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from grpo_core.algo.advantages.base import Advantages, StepScores
from grpo_core.algo.advantages.compare import Groups, compare
from grpo_core.algo.advantages.gae import gae_advantages
from grpo_core.algo.advantages.gdpo import gdpo_advantages
from grpo_core.algo.advantages.group import group_advantages
from grpo_core.algo.advantages.maxrl import maxrl_advantages
from grpo_core.algo.advantages.pass_at_k import pass_at_k_advantages
from grpo_core.algo.advantages.process import process_advantages
from grpo_core.algo.advantages.reinforce import reinforce_advantages
from grpo_core.algo.advantages.reinforce_baseline import reinforce_baseline_advantages
from grpo_core.algo.advantages.reinforce_pp import reinforce_pp_values, whitened_rewards, whitened_tokens
from grpo_core.algo.advantages.rloo import rloo_advantages
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.records.types import Signal

_Tokens = list[list[Tensor]]
_T = TypeVar("_T")


def step_advantages(scores: StepScores, algorithm: AlgorithmConfig) -> Advantages:
    """Advantages of all completions of a step.

    With `scores.token_penalties` the reward that is compared is r − Σ_t penalty_t; REINFORCE++ and the critic take the
    penalties token by token. Raises ValueError, naming the place, for a number that is none or an input that the
    estimator needs and did not get: both are defects of the caller.
    """
    _refuse(scores, algorithm)
    compared = compare(_after_penalties(scores), scores.scored_PG, ddof=algorithm.std_ddof)
    advantages_PG, tokens, returns = _estimate(scores, compared, algorithm)
    if tokens is None:
        informative_P = (advantages_PG != 0).any(dim=1)
    else:
        advantages_PG = torch.tensor(
            [[float(one.mean()) if len(one) else 0.0 for one in row] for row in tokens], dtype=torch.float64
        )
        informative_P = torch.tensor([any(bool((one != 0).any()) for one in row) for row in tokens])
    return Advantages(
        advantages_PG=advantages_PG,
        tokens=tokens,
        rewards_PG=compared.rewards_PG,
        mean_P=compared.mean_P,
        std_P=compared.std_P,
        signals=_signals(compare(scores.rewards_PG, scores.scored_PG, ddof=0)),
        informative_P=informative_P,
        returns=returns,
    )


def _estimate(
    scores: StepScores, compared: Groups, algorithm: AlgorithmConfig
) -> tuple[Tensor, _Tokens | None, _Tokens | None]:
    """(advantages, their tokens, returns); the first means nothing where the second is given."""
    nothing_PG = torch.zeros_like(compared.rewards_PG)
    ddof, eps, scale = algorithm.std_ddof, algorithm.advantage_eps, algorithm.scale
    if algorithm.supervision == "process":
        steps = _given(scores.step_rewards, "step_rewards")
        tokens = process_advantages(steps, compared.scored_PG, scores.lengths_PG, scale=scale, ddof=ddof, eps=eps)
        return nothing_PG, tokens, None
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        components_CPG = _given(scores.components_CPG, "components_CPG").to(torch.float64)
        weights_C = _given(scores.weights_C, "weights_C")
        return gdpo_advantages(components_CPG, weights_C, compared.scored_PG, ddof=ddof, eps=eps), None, None
    match algorithm.advantage:
        case "group":
            return group_advantages(compared, scale=scale, ddof=ddof, eps=eps), None, None
        case "rloo":
            return rloo_advantages(compared), None, None
        case "reinforce":
            return reinforce_advantages(compared), None, None
        case "reinforce_baseline":
            return reinforce_baseline_advantages(compared, scale=scale, ddof=ddof, eps=eps), None, None
        case "reinforce_pp" | "reinforce_pp_baseline":
            values_PG, used_PG = reinforce_pp_values(
                scores.rewards_PG.to(torch.float64),
                compared.scored_PG,
                baseline=algorithm.advantage == "reinforce_pp_baseline",
            )
            lengths_PG, penalties = scores.lengths_PG, scores.token_penalties
            if penalties is None:
                return whitened_rewards(values_PG, used_PG, lengths_PG, ddof=ddof, eps=eps), None, None
            return nothing_PG, whitened_tokens(values_PG, used_PG, penalties, lengths_PG, ddof=ddof, eps=eps), None
        case "maxrl":
            return maxrl_advantages(compared), None, None
        case "pass_at_k":
            k = _given(algorithm.pass_k, "pass_k")
            return pass_at_k_advantages(compared, k=k, scale=scale, eps=eps), None, None
        case "gae":
            tokens, returns = gae_advantages(
                scores.rewards_PG.to(torch.float64),
                compared.scored_PG,
                scores.token_penalties,
                _given(scores.values, "values"),
                gamma=algorithm.critic.gamma,
                gae_lambda=algorithm.critic.gae_lambda,
                scale=scale,
                ddof=ddof,
                eps=eps,
            )
            return nothing_PG, tokens, returns


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


# ---------------------------------------------------------------------- defects of the caller


def _given(value: _T | None, name: str) -> _T:
    if value is None:
        raise ValueError(f"this estimator needs {name}, and StepScores has none")
    return value


def _refuse(scores: StepScores, algorithm: AlgorithmConfig) -> None:
    """Raises ValueError for what would make every number after it wrong without a trace."""
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
    """Every number of one completion with its name; a tensor of tokens is told by its sum."""
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
        _ordered([place for place, _ in scores.step_rewards[p][g]], length, p, g)
        for place, value in scores.step_rewards[p][g]:
            yield f"the step reward at token {place}", value


def _ordered(places: Sequence[int], length: int, p: int, g: int) -> None:
    if any(not 0 <= place < length for place in places) or list(places) != sorted(places):
        raise ValueError(
            f"steps of group {p}, completion {g} end at tokens {list(places)}, not in order within its {length}"
        )
