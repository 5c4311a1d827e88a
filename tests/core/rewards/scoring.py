"""Ways to ask a kind for its value, for tests."""

from typing import Any

import pytest

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import ConfigError
from grpo_core.records import ComponentScore
from grpo_core.rewards import KINDS, Rubric
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.rules import ruled


def told(
    kind: str,
    completion: str,
    answer: str = "",
    *,
    prompt: str = "q",
    meta: dict[str, Any] | None = None,
    tokens: int | None = None,
    **params: Any,
) -> ComponentScore:
    """What a kind of place here or aside says of a completion, as the runner hears it; in this process."""
    found = KINDS[kind]  # type: ignore[index]
    sample = Unscored(Problem("p", prompt, answer, meta or {}), completion, tokens)
    return ruled(found, found.params.model_validate(params), sample)


def value(kind: str, completion: str, answer: str = "", **rest: Any) -> float | None:
    return told(kind, completion, answer, **rest).value


def refused(kind: str, **params: Any) -> dict[str, str]:
    """{parameter: what is wrong with it}, of a rubric that must not be built."""
    config = RewardConfig.model_validate({"components": [{"name": "a", "kind": kind, "params": params}]})
    with pytest.raises(ConfigError) as caught:
        Rubric(config)
    return {one.path.removeprefix("reward.components.0.params."): one.message for one in caught.value.problems}


def taken(kind: str, **params: Any) -> Rubric:
    return Rubric(RewardConfig.model_validate({"components": [{"name": "a", "kind": kind, "params": params}]}))
