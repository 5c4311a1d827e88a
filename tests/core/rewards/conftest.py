"""Runners of a person's own verifier, closed after the test."""

from collections.abc import Iterator
from typing import Any

import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.rewards import Rubric, Runner
from tests.core.rewards.own_verifier import Make


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Runner] = []

    def runner(source: str, *, on_error: str = "mask", limits: dict[str, Any] | None = None, **params: Any) -> Runner:
        component = {"name": "mine", "kind": "python", "params": {"source": source, **params}}
        config = {"components": [component], "on_error": on_error, "limits": limits or {"workers": 2}}
        made.append(Runner(Rubric(RewardConfig.model_validate(config))))
        return made[-1]

    yield runner
    for one in made:
        one.close()
