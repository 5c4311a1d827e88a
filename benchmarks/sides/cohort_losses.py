"""Cohort's side of the loss comparison: its own advantages and its own training engine, `SingleTraining`.

Shapes: B rows of the step · C reward components · N tokens of all rows, row after row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sides.loss_cases import GROUP_SIZE, MAX_TOKENS, TEMPERATURE, Case, Row
from torch import Tensor

from grpo_core.advantages.base import StepScores
from grpo_core.algo.advantages import Advantages, step_advantages
from grpo_core.algo.aggregation import RowFacts, row_weights
from grpo_core.algo.kl import kl_estimate
from grpo_core.config.run import RunConfig
from grpo_core.model.load import LoadedModel, ModelSource
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.training.base import TrainRow
from grpo_core.training.single import SingleTraining, row_facts


@dataclass(frozen=True)
class Said:
    """What our side makes of one case."""

    loss: float
    gradients: dict[str, Tensor]
    advantages: list[float]
    old: list[list[float]]
    reference: list[list[float]]
    size: float
    """What the loss would be if every token pulled the same way, at ratio 1: Σ w·|A|. Rounding is relative to it."""
    bounded: float
    """Share of the tokens in use at which the loss was clipped."""


def run_config(case: Case, parts: Sequence[Sequence[int]]) -> RunConfig:
    """The case as a whole run, checked as `grpo train` would. No weight is to move, and no gradient to be scaled."""
    fields = {"advantage": "group", "scale": "group_std", "correction": {"mode": "none"}, **case.ours}
    if fields["aggregation"] == "local_token_mean":
        fields["local_batch"] = len(parts[0])
    components = [{"name": f"reward_{n}", "kind": "exact"} for n in range(2 if case.rewards == "two" else 1)]
    return RunConfig.from_dict(
        {
            "model": {"path": "none"},
            "data": {"path": "none"},
            "reward": {"components": components},
            "sampling": {"group_size": GROUP_SIZE, "max_completion_tokens": MAX_TOKENS, "temperature": TEMPERATURE},
            "algorithm": fields,
            "optim": {"lr": 1e-30, "max_grad_norm": 1e30},
            # One micro-batch holds all rows here, or about half of them.
            "engine": {"micro_batch_tokens": 10_000 if case.micro_batches == 1 else 400},
            "eval": {"before": False, "after": False},
        }
    )


def run(case: Case, rows: Sequence[Row], parts: Sequence[Sequence[int]], policies: dict[str, Any], encode: Any) -> Said:
    """Loss and gradients of one optimiser update on the rows that `parts` names, in that order. `policies`: current,
    old and reference."""
    config = run_config(case, parts)
    algorithm = config.algorithm
    told = advantages(rows, config)
    order = [place for part in parts for place in part]
    with torch.no_grad():
        old = _logprobs(policies["old"], rows, order, encode)
        reference = _logprobs(policies["reference"], rows, order, encode)
    batch = [
        TrainRow(
            encode(rows[place].prompt),
            rows[place].completion,
            float(told.advantages_PG.flatten()[place]),
            used=None not in rows[place].rewards
            and not (algorithm.overlong.mask_truncated and len(rows[place].completion) == MAX_TOKENS),
            group=place // GROUP_SIZE,
            informative=bool(told.informative_P[place // GROUP_SIZE]),
            sampler_logprobs=old_T.tolist(),
            stale=True,  # the engine then takes these as the old policy's
        )
        for place, old_T in zip(order, old, strict=True)
    ]
    current = policies["current"]
    training = SingleTraining(
        _loaded(current), _loaded(policies["reference"]) if algorithm.needs_reference else None, config
    )
    metrics = training.update(batch, step=1).metrics
    loss = metrics["loss"]
    if case.kl_times_ratio:
        loss += _what_the_ratio_adds(current, batch, old, reference, config)
    # The engine leaves the gradient where it was when the optimiser took its step.
    gradients = {name: weight.grad.clone() for name, weight in current.named_parameters()}
    current.zero_grad(set_to_none=True)
    return Said(
        loss=loss,
        gradients=gradients,
        advantages=told.advantages_PG.flatten().tolist(),
        old=_by_place(old, order, len(rows)),
        reference=_by_place(reference, order, len(rows)),
        size=_size(batch, config),
        # Absent for losses that hold no ratio back.
        bounded=metrics.get("clip_ratio/low_mean", 0.0) + metrics.get("clip_ratio/high_mean", 0.0),
    )


def advantages(rows: Sequence[Row], config: RunConfig) -> Advantages:
    """Those of all groups together."""
    paid_BC = torch.tensor([[float("nan") if r is None else r for r in row.rewards] for row in rows]).double()
    components_CPG = paid_BC.T.reshape(paid_BC.shape[1], -1, GROUP_SIZE)
    lengths_B = torch.tensor([len(row.completion) for row in rows])
    scores = StepScores(
        rewards_PG=components_CPG.sum(0),
        scored_PG=~components_CPG.isnan().any(0),
        lengths_PG=lengths_B.reshape(-1, GROUP_SIZE),
        components_CPG=components_CPG,
        weights_C=torch.ones(paid_BC.shape[1], dtype=torch.float64),
    )
    return step_advantages(scores, config.algorithm)


def _size(batch: Sequence[TrainRow], config: RunConfig) -> float:
    weights_B = row_weights(_facts(batch), config.algorithm).policy_B.tolist()
    return sum(weight * len(row.completion) * abs(row.advantage) for weight, row in zip(weights_B, batch, strict=True))


def _facts(batch: Sequence[TrainRow]) -> list[RowFacts]:
    return row_facts(batch, range(len(batch)), lambda _: True)


def _what_the_ratio_adds(
    current: Any, batch: Sequence[TrainRow], old: Sequence[Tensor], reference: Sequence[Tensor], config: RunConfig
) -> float:
    """β·Σ w·(r − 1)·k3, for the case in which TRL multiplies the KL of each token by its ratio: adds its gradient to
    that of the engine, which has no such setting, and returns it."""
    algorithm = config.algorithm
    lengths = torch.tensor([len(row.completion) for row in batch])
    weights_N = row_weights(_facts(batch), algorithm).penalty_B.float().repeat_interleave(lengths)
    logprobs_N = completion_logprobs(
        current, [row.prompt for row in batch], [row.completion for row in batch], temperature=TEMPERATURE
    )
    kl_N = kl_estimate(logprobs_N, torch.cat(list(reference)), algorithm.kl.estimator)
    added = algorithm.kl.coef * (weights_N * torch.expm1(logprobs_N - torch.cat(list(old))) * kl_N).sum()
    added.backward()
    return added.item()


def _logprobs(model: Any, rows: Sequence[Row], order: Sequence[int], encode: Any) -> list[Tensor]:
    """Of each row, in that order."""
    prompts, completions = [encode(rows[p].prompt) for p in order], [rows[p].completion for p in order]
    logprobs_N = completion_logprobs(model, prompts, completions, temperature=TEMPERATURE)
    return list(logprobs_N.split([len(one) for one in completions]))


def _by_place(values: Sequence[Tensor], order: Sequence[int], count: int) -> list[list[float]]:
    known = dict(zip(order, values, strict=True))
    return [known[place].tolist() if place in known else [] for place in range(count)]


def _loaded(model: Any) -> LoadedModel:
    return LoadedModel(model, None, frozenset(), 0, ModelSource(Path(), "benchmark"), torch.device("cpu"))
