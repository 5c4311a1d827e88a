"""From drawn groups to advantages, records and rows for the update."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.advantages.base import StepScores
from grpo_core.algo.advantages import Advantages, step_advantages
from grpo_core.config.kinds import ScoredConfig
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import Discard, Group, MaskCause, Sample
from grpo_core.rewards import Scored
from grpo_core.rewards.signal import component_weights, signal_of
from grpo_core.rewards.steps import completion_step_rewards
from grpo_core.trainer.sampled import SampledGroup, StepBatch
from grpo_core.training.base import TrainRow


def advantages_of(
    batch: Sequence[SampledGroup],
    config: ScoredConfig,
    policy: LoadedModel,
    *,
    penalties: Sequence[Sequence[Tensor]] | None = None,
    values: Sequence[Sequence[Tensor]] | None = None,
) -> Advantages:
    """Advantages of the step's groups. `penalties` and `values` [p][g] → T: β·KL and the critic's value per token."""
    algorithm = config.algorithm
    components = weights = None
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        factors = component_weights(config.reward, config.algorithm)
        weights = torch.tensor(list(factors.values()), dtype=torch.float64)
        components = torch.tensor(
            [[[_value(score, name) for score in group.scores] for group in batch] for name in factors],
            dtype=torch.float64,
        )
    step_rewards = None
    if algorithm.supervision == "process":
        factors = component_weights(config.reward, config.algorithm)
        step_rewards = [
            [
                completion_step_rewards(score.components, factors, completion.tokens, policy.tokenizer, policy.eos_ids)
                if score.reward is not None
                else []
                for score, completion in zip(group.scores, group.completions, strict=True)
            ]
            for group in batch
        ]
    scores = replace(
        _scores(batch),
        components_CPG=components,
        weights_C=weights,
        signals=[signal_of(group.scores, config.reward, config.algorithm) for group in batch],
        token_penalties=penalties,
        step_rewards=step_rewards,
        values=values,
    )
    return step_advantages(scores, algorithm)


def _value(score: Scored, name: str) -> float:
    """Of one component; 0 where it could not score the completion, and where it scores other rows only."""
    component = score.components.get(name)
    return component.value or 0.0 if component is not None else 0.0


def _scores(batch: Sequence[SampledGroup]) -> StepScores:
    """Rewards and lengths, which every estimator needs."""
    rewards = [[score.reward for score in group.scores] for group in batch]
    return StepScores(
        rewards_PG=torch.tensor([[0.0 if r is None else r for r in group] for group in rewards], dtype=torch.float64),
        scored_PG=torch.tensor([[r is not None for r in group] for group in rewards]),
        lengths_PG=torch.tensor([[len(completion.tokens) for completion in group.completions] for group in batch]),
    )


def train_rows(
    batch: Sequence[SampledGroup],
    advantages: Advantages | None,
    config: ScoredConfig,
    step: int,
    *,
    traced: Collection[int] = (),
) -> list[TrainRow]:
    """One row for each completion, group by group; before advantages are known they are 0. `traced`: rows of which the
    update returns what it computes."""
    rows: list[TrainRow] = []
    for p, group in enumerate(batch):
        for g, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
            cause = mask_cause(completion.finish, score.reward, config)
            advantage: float | list[float] = 0.0
            if advantages is not None:
                tokens = advantages.tokens
                advantage = float(advantages.advantages_PG[p, g]) if tokens is None else tokens[p][g].tolist()
            rows.append(
                TrainRow(
                    group.prompted.tokens,
                    completion.tokens,
                    advantage,
                    used=cause is None,
                    group=p,
                    informative=advantages is None or bool(advantages.informative_P[p]),
                    sampler_logprobs=completion.logprobs,
                    stale=group.sampled_at != step,
                    traced=len(rows) in traced,
                )
            )
    return rows


def mask_cause(finish: str, reward: float | None, config: ScoredConfig) -> MaskCause | None:
    """Why a completion is left out before any update; None when it is not."""
    if reward is None:
        return "reward_error"
    return "truncated" if finish == "length" and config.algorithm.overlong.mask_truncated else None


@dataclass(frozen=True)
class StepGroups:
    """The records of one step's groups."""

    trained: list[Group]
    discarded: list[Group]
    left: list[Group]
    """Left over for the next step."""
    fresh: list[Group]
    """All that were sampled in this step, trained on or not, in the order in which they were: what the step's metrics
    and the run's sums are taken of."""


def step_groups(
    batch: StepBatch,
    advantages: Advantages | None,
    config: ScoredConfig,
    *,
    step: int,
    masked: dict[int, str] | None = None,
    clipped: dict[int, float] | None = None,
) -> StepGroups:
    """As `records_of` has them. What was sampled in a step is counted in it, whether it was trained on or not."""
    trained = records_of(batch.kept, advantages, config, step=step, masked=masked, clipped=clipped)
    reasons = [reason for _, reason in batch.discarded]
    left_out = [group for group, _ in batch.discarded]
    discarded = records_of(left_out, None, config, step=step, first=len(trained), reasons=reasons)
    known = {id(sampled): group for sampled, group in zip(batch.kept, trained, strict=True)}
    known |= {id(sampled): group for sampled, group in zip(left_out, discarded, strict=True)}
    rest = [sampled for sampled in batch.fresh if id(sampled) not in known]
    left = records_of(rest, None, config, step=step, first=len(trained) + len(discarded))
    known |= {id(sampled): group for sampled, group in zip(rest, left, strict=True)}
    return StepGroups(trained, discarded, left, [known[id(sampled)] for sampled in batch.fresh])


def records_of(
    batch: Sequence[SampledGroup],
    advantages: Advantages | None,
    config: ScoredConfig,
    *,
    step: int,
    first: int = 0,
    reasons: Sequence[Discard] | None = None,
    masked: dict[int, str] | None = None,
    clipped: dict[int, float] | None = None,
) -> list[Group]:
    """The groups as records, numbered from `first`. Without advantages (a discarded group, one left over) they are 0.
    `masked`: rows that the update left out, by their index in the step; `clipped`: of each the share of its tokens."""
    if not batch:
        return []
    groups, row = [], 0
    scores = advantages if advantages is not None else _unlearned(batch, config)
    for p, group in enumerate(batch):
        samples = []
        for g, (completion, text, score) in enumerate(zip(group.completions, group.texts, group.scores, strict=True)):
            shaped = float(scores.rewards_PG[p, g])
            cause = mask_cause(completion.finish, score.reward, config) or (masked or {}).get(row)
            samples.append(
                Sample.model_validate(
                    {
                        "index": g,
                        "completion": text,
                        "tokens": len(completion.tokens),
                        "finish_reason": completion.finish,
                        "reward": score.reward,
                        "components": score.components,
                        "shaped_reward": None if score.reward is None or shaped == score.reward else shaped,
                        "advantage": 0.0 if advantages is None else float(advantages.advantages_PG[p, g]),
                        "mask_cause": cause,
                        "logprob_mean": sum(completion.logprobs) / len(completion.logprobs),
                        "clipped": (clipped or {}).get(row),
                    }
                )
            )
            row += 1
        groups.append(
            Group(
                step=step,
                index=first + p,
                problem_id=group.prompted.problem.id,
                prompt=group.prompted.text,
                answer=group.prompted.problem.answer,
                reward_mean=_number(scores.mean_P[p]),
                reward_std=_number(scores.std_P[p]),
                signal=scores.signals[p],
                discarded=reasons[p] if reasons is not None else None,
                sampled_at=group.sampled_at if group.sampled_at != step else None,
                samples=tuple(samples),
            )
        )
    return groups


def _unlearned(batch: Sequence[SampledGroup], config: ScoredConfig) -> Advantages:
    """Means, spreads and signals of groups that nothing is learned from: those of plain group advantages."""
    plain = config.algorithm.model_copy(
        update={
            "advantage": "group",
            "scale": "none",
            "supervision": "outcome",
            "multi_objective_aggregation": "sum_then_normalize",
        }
    )
    signals = [signal_of(group.scores, config.reward, config.algorithm) for group in batch]
    return step_advantages(
        replace(_scores(batch), signals=signals),
        plain,
    )


def _number(value: Tensor) -> float | None:
    number = float(value)
    return None if number != number else number
