"""Samples for the kind `code`, as its tests hand them to the scorer."""

from typing import Any

from grpo_core.data import Problem
from grpo_core.rewards.base import Unscored

CALLS = [{"call": "f", "args": [n], "returns": n + 1} for n in range(4)]


def problem(tests: Any, **meta: Any) -> Problem:
    return Problem("p7", "Write a program.", "", {"tests": tests, **meta})


def sample(tests: Any, code: str, **meta: Any) -> Unscored:
    return Unscored(problem(tests, **meta), f"```python\n{code}\n```")
