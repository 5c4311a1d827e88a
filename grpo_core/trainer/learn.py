"""Learns from the groups of one step: model outputs that advantages need, advantages, update."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from grpo_core.algo.advantages import Advantages
from grpo_core.algo.kl import kl_estimate
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.kinds import ScoredConfig
from grpo_core.config.run import RunConfig
from grpo_core.model.load import LoadedModel
from grpo_core.rewards.signal import component_weights
from grpo_core.trainer.groups import StepGroups, advantages_of, train_rows
from grpo_core.trainer.metrics import Counts, group_metrics, mean_entropy, monitor_metrics, step_sums
from grpo_core.trainer.sampled import SampledGroup, StepBatch
from grpo_core.trainer.tokens import traced_rows
from grpo_core.training.base import TokenSignals
from grpo_core.training.logprob_pass import CachedLogprobs
from grpo_core.training.single import SingleTraining


@dataclass(frozen=True)
class Learned:
    """What a step's update gave. `advantages` is None when the step had no group."""

    advantages: Advantages | None
    masked: dict[int, str]
    metrics: dict[str, float]
    tokens: int
    """Of the completions that were learned from."""
    clipped: dict[int, float] = field(default_factory=dict)
    """As in training.base.UpdateResult."""
    token_signals: dict[int, TokenSignals] = field(default_factory=dict)
    """Of the rows that may be stored token by token."""


@dataclass(frozen=True)
class BeforeAdvantages:
    """What advantages need from the models, [p][g] → T."""

    penalties: list[list[Tensor]] | None = None
    """β·KL of each token."""
    values: list[list[Tensor]] | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def learn(
    kept: Sequence[SampledGroup], config: RunConfig, *, step: int, policy: LoadedModel, training: SingleTraining
) -> Learned:
    """Update the policy from the step's groups. Without a group the optimiser still steps, on a gradient of 0."""
    algorithm, coef = config.algorithm, training.kl_coef
    before = BeforeAdvantages()
    if kept and (algorithm.estimator.critic or (algorithm.kl.coef > 0 and algorithm.kl.place == "reward")):
        measured = training.measure(train_rows(kept, None, config, step))
        before = before_advantages(measured, kept, algorithm, coef=coef, step=step)
    advantages = None
    if kept:
        advantages = advantages_of(kept, config, policy, penalties=before.penalties, values=before.values)
    rows = train_rows(kept, advantages, config, step, traced=traced_rows(kept, config, step))
    returns = None
    if advantages is not None and advantages.returns is not None:
        returns = [returns_T.tolist() for group in advantages.returns for returns_T in group]
    result = training.update(rows, step=step, returns=returns)
    metrics = before.metrics | result.metrics
    if returns is not None and before.values is not None:
        values = [values_T for group in before.values for values_T in group]
        used = [index for index, row in enumerate(rows) if row.used]
        metrics |= value_metrics([values[index] for index in used], [returns[index] for index in used])
    if algorithm.kl.controller == "adaptive":
        metrics["kl_coef"] = coef
        if "kl_per_completion" in metrics:
            training.adapt_kl(metrics["kl_per_completion"], len(rows))
    return Learned(advantages, result.masked, metrics, result.tokens, result.clipped, result.token_signals)


def before_advantages(
    measured: CachedLogprobs, batch: Sequence[SampledGroup], algorithm: AlgorithmConfig, *, coef: float, step: int
) -> BeforeAdvantages:
    """KL penalties to subtract from rewards, and the critic's values, from measurements by row; `coef` is β now.

    The estimators are means over samples of the policy in the numerator. A completion of an earlier policy is no sample
    of the current one, so its penalty is that of the policy that sampled it, by the sampler's own log-probabilities."""
    penalties = values = None
    metrics: dict[str, float] = {}
    number = count()  # of a row in the step, group by group
    rows = [[next(number) for _ in group.completions] for group in batch]
    if algorithm.kl.coef > 0 and algorithm.kl.place == "reward":
        stale = {
            row: torch.tensor(completion.logprobs, dtype=torch.float64)
            for group, own in zip(batch, rows, strict=True)
            for row, completion in zip(own, group.completions, strict=True)
            if group.sampled_at != step
        }
        kl = {
            row: kl_estimate(stale.get(row, old.double()), measured.reference[row].double(), algorithm.kl.estimator)
            for row, old in measured.old.items()
        }
        penalties = [[coef * kl[row] for row in group] for group in rows]
        total = sum(float(kl_T.sum()) for kl_T in kl.values())
        metrics = {"kl": total / sum(len(kl_T) for kl_T in kl.values()), "kl_per_completion": total / len(kl)}
    if measured.values:
        values = [[measured.values[row].double() for row in group] for group in rows]
    return BeforeAdvantages(penalties, values, metrics)


def value_metrics(values: Sequence[Tensor], returns: Sequence[Sequence[float]]) -> dict[str, float]:
    """explained_variance = 1 − Var(return − value) / Var(return), over completions in use; absent where returns do not
    vary."""
    if not values:
        return {}
    predicted_N = torch.cat(list(values))
    true_N = torch.cat([torch.tensor(row, dtype=torch.float64) for row in returns])
    spread = true_N.var(correction=0).item()
    if spread == 0:
        return {}
    return {"explained_variance": 1 - (true_N - predicted_N).var(correction=0).item() / spread}


def count_step(
    counts: Counts, step: int, groups: StepGroups, batch: StepBatch, learned: Learned, config: ScoredConfig
) -> dict[str, float]:
    """All metrics of the step but those of time."""
    algorithm, flat = config.algorithm, batch.completions
    lengths = [len(completion.tokens) for completion in flat]
    success = config.reward.success_of
    counts.add(step_sums(groups.fresh, success=success, tokens=sum(lengths) + batch.prompt_tokens))
    if learned.advantages is not None:
        counts.informative += int(learned.advantages.informative_P.sum())
    counts.add_masked("importance", len(learned.masked))
    metrics = group_metrics(groups.fresh, success=success, algorithm=algorithm)
    metrics |= monitor_metrics(groups.fresh, success=success, weights=component_weights(config.reward, algorithm))
    metrics |= learned.metrics
    if algorithm.correction.mode == "sequence_mask":
        metrics["masked/importance"] = float(len(learned.masked))
    if algorithm.dynamic_sampling.enabled:
        counts.add_discarded([reason for _, reason in batch.discarded])
        metrics |= batch.metrics()
    age = batch.staleness(step)
    if age is not None and (algorithm.dynamic_sampling.enabled or config.engine.one_step_off):
        metrics["sampling/staleness"] = age
    if (entropy := mean_entropy([completion.entropy for completion in flat], lengths)) is not None:
        metrics["entropy"] = entropy
    return metrics | {"num_tokens": counts.totals()["tokens"]}
