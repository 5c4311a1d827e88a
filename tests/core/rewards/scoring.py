"""Asks a rule for its score of one completion, in this process, for tests."""

from typing import Any

from grpo_core.data import Problem
from grpo_core.records import ComponentScore
from grpo_core.rewards import KINDS
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.rules import ruled


def scored(
    kind: str, completion: str, answer: str = "", *, meta: dict[str, Any] | None = None, **params: Any
) -> ComponentScore:
    found = KINDS[kind]  # type: ignore[index]
    return ruled(
        found, found.params.model_validate(params), Unscored(Problem("p", "q", answer, meta or {}), completion)
    )


def value(kind: str, completion: str, answer: str = "", **rest: Any) -> float | None:
    return scored(kind, completion, answer, **rest).value
