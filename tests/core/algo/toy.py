"""Small inputs for losses: completions given by their log-ratios, and an algorithm for each loss. And for advantages.

A row is one completion; its tokens have old log-probability −1 each unless told otherwise.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.advantages.base import StepScores
from grpo_core.algo.advantages import Advantages, step_advantages
from grpo_core.algo.aggregation import RowFacts, row_weights
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.losses.base import Surrogate, Tokens
from grpo_core.losses.settings import LOSSES

SETTINGS: dict[str, dict[str, object]] = {
    "gspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.15},
    "luspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
    "cispo": {"clip_high": 1.25},
}
"""Bounds that some of the toy's ratios cross."""
PAIRS = [(loss, aggregation) for loss, spec in LOSSES.items() for aggregation in spec.aggregations]
"""Every loss with every aggregation it goes with."""


def algorithm(loss: str, aggregation: str | None = None, **more: object) -> AlgorithmConfig:
    """The loss with bounds fit for a toy; aggregation, when not given, the first it goes with."""
    how = aggregation or LOSSES[loss].aggregations[0]
    settings: dict[str, object] = {"loss": loss, "aggregation": how, **SETTINGS.get(loss, {})}
    if how == "constant":
        settings["aggregation_constant"] = 10
    if how == "local_token_mean":
        settings["local_batch"] = 2
    return AlgorithmConfig.model_validate(settings | more)


def tokens_of(
    log_ratios: Sequence[Sequence[float]],
    advantages: Sequence[float | Sequence[float]],
    *,
    old: Sequence[float] | None = None,
) -> Tokens:
    """Rows with these log-ratios; an advantage is one number for the row or one for each token. `old`: the tokens'
    old log-probabilities. `logprobs_N` is a leaf that collects the gradient."""
    lengths = [len(row) for row in log_ratios]
    flat = torch.tensor([value for row in log_ratios for value in row], dtype=torch.float64)
    given: list[float] = []
    for advantage, length in zip(advantages, lengths, strict=True):
        given += [float(advantage)] * length if isinstance(advantage, int | float) else list(advantage)
    old_N = torch.full_like(flat, -1.0) if old is None else torch.tensor(old, dtype=torch.float64)
    return Tokens(
        logprobs_N=(old_N + flat).requires_grad_(),
        old_logprobs_N=old_N,
        advantages_N=torch.tensor(given, dtype=torch.float64),
        rows_N=torch.repeat_interleave(torch.tensor(lengths, dtype=torch.int64)),
    )


def surrogate(tokens: Tokens, config: AlgorithmConfig) -> Surrogate:
    return config.loss_spec.compute(tokens, config)


def gradient(tokens: Tokens, config: AlgorithmConfig, weights_R: Tensor | None = None) -> list[float]:
    """d loss / d log π of each token; without weights the sum of all tokens' losses."""
    loss_N = surrogate(tokens, config).loss_N
    total = loss_N.sum() if weights_R is None else (loss_N * weights_R[tokens.rows_N]).sum()
    (grad_N,) = torch.autograd.grad(total, tokens.logprobs_N)
    return grad_N.tolist()


def rows(lengths: Sequence[int], **flags: Sequence[object]) -> list[RowFacts]:
    """Completions of these lengths; used, informative and in group 0 unless told otherwise."""
    size = len(lengths)
    used, informative = flags.get("used", [True] * size), flags.get("informative", [True] * size)
    groups = flags.get("groups", [0] * size)
    return [
        RowFacts(length, bool(use), bool(tells), int(str(group)))
        for length, use, tells, group in zip(lengths, used, informative, groups, strict=True)
    ]


def policy_weights(lengths: Sequence[int], config: AlgorithmConfig, **flags: Sequence[object]) -> Tensor:
    return row_weights(rows(lengths, **flags), config).policy_B


# ---------------------------------------------------------------------- advantages


def advantages_of(rewards, *, scored=None, lengths=None, inputs=None, **algorithm) -> Advantages:
    """`rewards` [p][g]; a group that is shorter than the longest is filled with unscored completions of no tokens.
    `inputs`: further fields of StepScores, as plain lists. The rest are fields of the config's algorithm; eps is 0 if
    not given."""
    longest = max(map(len, rewards))
    scored = scored or [[True] * len(group) for group in rewards]
    lengths = lengths or [[1] * len(group) for group in rewards]

    def filled(table, filler, kind=None):
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in table], dtype=kind)

    scores = StepScores(
        rewards_PG=filled(rewards, float("nan"), torch.float64),
        scored_PG=filled(scored, False),
        lengths_PG=filled(lengths, 0),
        **{name: _FIELDS[name](value) for name, value in (inputs or {}).items()},
    )
    return step_advantages(scores, AlgorithmConfig.model_validate({"advantage_eps": 0.0, **algorithm}))


def _tensors(rows: list[list[list[float]]]) -> list[list[torch.Tensor]]:
    return [[torch.tensor(completion, dtype=torch.float64) for completion in row] for row in rows]


_FIELDS: dict[str, Any] = {
    "components_CPG": lambda rows: torch.tensor(rows, dtype=torch.float64),
    "weights_C": lambda rows: torch.tensor(rows, dtype=torch.float64),
    "signals": tuple,
    "step_rewards": lambda rows: [[[tuple(step) for step in completion] for completion in row] for row in rows],
    "token_penalties": _tensors,
    "values": _tensors,
}


def values(result: Advantages) -> list[list[float]]:
    return result.advantages_PG.tolist()


def token_values(result: Advantages) -> list[list[list[float]]]:
    assert result.tokens is not None
    return [[completion.tolist() for completion in row] for row in result.tokens]
