"""Short ways to ask for advantages."""

from typing import Any

import torch

from grpo_core.algo.advantages import Advantages, StepScores, step_advantages
from grpo_core.config_algorithm import AlgorithmConfig


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
    "step_rewards": lambda rows: [[[tuple(step) for step in completion] for completion in row] for row in rows],
    "token_penalties": _tensors,
    "values": _tensors,
}


def values(result: Advantages) -> list[list[float]]:
    return result.advantages_PG.tolist()


def token_values(result: Advantages) -> list[list[list[float]]]:
    assert result.tokens is not None
    return [[completion.tolist() for completion in row] for row in result.tokens]
