"""A person's own verifier in the real sandbox, for tests: makes runners of a source and asks them."""

from collections.abc import Callable
from typing import Any

from grpo_core.data import Problem
from grpo_core.records import ComponentScore
from grpo_core.rewards import Runner, Unscored

Make = Callable[..., Runner]

LOOPS = "def verify(sample):\n    while sample.completion == 'loop':\n        pass\n    return 1\n"
"""Loops on the completion `loop`."""


def samples(*completions: str, **meta: Any) -> list[Unscored]:
    return [Unscored(Problem(f"p{n}", "q", "7", meta), one, len(one)) for n, one in enumerate(completions)]


def told(runner: Runner, *completions: str, **meta: Any) -> list[ComponentScore]:
    return [scored.components["mine"] for scored in runner.score(samples(*completions, **meta))]


def returning(make: Make, expression: str, **params: Any) -> ComponentScore:
    (found,) = told(
        make(f"import math, fractions, decimal\ndef verify(sample):\n    return {expression}", **params), "abc"
    )
    return found


ONE_BAD = """
import {modules}
def verify(sample):
    if sample.completion == "bad":
        {bad}
    return 1
"""


def one_bad(make: Make, bad: str, modules: str = "math", **params: Any) -> ComponentScore:
    """The score of a bad sample between good ones, which must be scored."""
    # `__import__` is no import that is checked; what it gives is bounded by the sandbox.
    runner = make(ONE_BAD.format(bad=bad, modules=modules), limits={"workers": 1, "deadline_seconds": 30}, **params)
    first, found, last = told(runner, "good", "bad", "good")
    assert (first.value, last.value) == (1.0, 1.0), (first, last)
    assert found.value is None
    return found
