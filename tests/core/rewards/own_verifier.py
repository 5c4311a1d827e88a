"""A person's own verifier in the real sandbox: makes runners of a source and scores with them."""

from collections.abc import Callable
from typing import Any

from grpo_core.data import Problem
from grpo_core.records import ComponentScore
from grpo_core.rewards import Runner, Unscored

Make = Callable[..., Runner]

ONE = "def verify(sample):\n    return 1"
LOOPS = "def verify(sample):\n    while sample.completion == 'loop':\n        pass\n    return 1\n"
"""Loops on the completion `loop`."""
SINGLE = {"workers": 1}


def samples(*completions: str, **meta: Any) -> list[Unscored]:
    return [Unscored(Problem(f"p{n}", "q", "7", meta), text, len(text)) for n, text in enumerate(completions)]


def scores(runner: Runner, *completions: str, **meta: Any) -> list[ComponentScore]:
    return [scored.components["mine"] for scored in runner.score(samples(*completions, **meta))]


def returning(make: Make, expression: str, **params: Any) -> ComponentScore:
    source = f"import math, fractions, decimal\ndef verify(sample):\n    return {expression}"
    (score,) = scores(make(source, **params), "abc")
    return score


def score_of_bad(make: Make, statement: str, **params: Any) -> ComponentScore:
    """The score of a bad sample between good ones, which must be scored."""
    # `__import__` is no import that is checked; what it gives is bounded by the sandbox.
    source = f'def verify(sample):\n    if sample.completion == "bad":\n        {statement}\n    return 1\n'
    runner = make(source, limits={"workers": 1, "deadline_seconds": 300}, **params)
    first, bad, last = scores(runner, "good", "bad", "good")
    assert (first.value, bad.value, last.value) == (1.0, None, 1.0), (first, bad, last)
    return bad
