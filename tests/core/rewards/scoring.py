"""Short ways to score in tests: by a rule in this process, by code, by a person's own verifier in the real sandbox; and
a short deadline for what hangs with minutes for all else, because on a busy machine what is quick may take seconds."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from grpo_core.config.reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import SandboxError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import KINDS, Rubric, Runner, ScoreRequest
from grpo_core.rewards import subprocess_pool as pool
from grpo_core.rewards.python.session import shared_sandbox
from grpo_core.rewards.python.session_slot import Slot
from grpo_core.rewards.scoring import ruled
from tests.tables import FOLDER

PROGRAMS: dict[str, str] = yaml.safe_load((FOLDER / "code_rewards/programs.yaml").read_text(encoding="utf-8"))
CALLS = [{"call": "f", "args": [n], "returns": n + 1} for n in range(4)]
ONE = "def verify(sample):\n    return 1"
LOOPS = "def verify(sample):\n    while sample.completion == 'loop':\n        pass\n    return 1\n"
"""Loops on the completion `loop`."""
SINGLE = {"workers": 1}
PATIENCE = 600.0


class Stop(Exception):
    pass


def stop_after(looks: int) -> Callable[[], None]:
    """A check that passes so many times, then stops the work."""
    left = iter(range(looks))

    def check() -> None:
        if next(left, None) is None:
            raise Stop

    return check


class FailingSandbox:
    """The real sandbox, of whose boxes so many cannot be had, `after` so many that can."""

    def __init__(self, failures: int = 0, *, after: int = 0) -> None:
        self.failures, self.after = failures, after
        self.report = shared_sandbox().report

    def open(self, *args: Any, **more: Any) -> Any:
        self.after -= 1
        if self.after < 0 < self.failures:
            self.failures -= 1
            raise SandboxError("no box today")
        return shared_sandbox().open(*args, **more)


def rubric_of(*components: dict[str, Any], **rest: Any) -> Rubric:
    """Components are named c0, c1, … where they have no name."""
    named = [{"name": f"c{n}", **component} for n, component in enumerate(components)]
    return Rubric(RewardConfig.model_validate({"components": named, **rest}))


def scored(kind: str, completion: str, answer: str = "", *, meta: Any = None, **params: Any) -> ComponentScore:
    rule = KINDS[kind]  # type: ignore[index]
    return ruled(
        rule, rule.params.model_validate(params), ScoreRequest(Problem("p", "q", answer, meta or {}), completion)
    )


def value(kind: str, completion: str, answer: str = "", **rest: Any) -> float | None:
    return scored(kind, completion, answer, **rest).value


def code_problem(tests: Any, **meta: Any) -> Problem:
    return Problem("p7", "Write a program.", "", {"tests": tests, **meta})


def code_sample(tests: Any, code: str, **meta: Any) -> ScoreRequest:
    return ScoreRequest(code_problem(tests, **meta), f"```python\n{code}\n```")


def samples(*completions: str, **meta: Any) -> list[ScoreRequest]:
    return [ScoreRequest(Problem(f"p{n}", "q", "7", meta), text, len(text)) for n, text in enumerate(completions)]


def scores(runner: Runner, *completions: str, **meta: Any) -> list[ComponentScore]:
    return [scored.components["mine"] for scored in runner.score(samples(*completions, **meta))]


def returning(make: Callable[..., Runner], expression: str, **params: Any) -> ComponentScore:
    source = f"import math, fractions, decimal\ndef verify(sample):\n    return {expression}"
    (score,) = scores(make(source, **params), "abc")
    return score


def score_of_bad(make: Callable[..., Runner], statement: str, **params: Any) -> ComponentScore:
    """The score of a bad sample between good ones, which must be scored."""
    # `__import__` is no import that is checked; what it gives is bounded by the sandbox.
    source = f'def verify(sample):\n    if sample.completion == "bad":\n        {statement}\n    return 1\n'
    runner = make(source, limits={"workers": 1, "deadline_seconds": 300}, **params)
    first, bad, last = scores(runner, "good", "bad", "good")
    expected = 0.0 if bad.error is None else None
    assert (first.value, bad.value, last.value) == (1.0, expected, 1.0), (first, bad, last)
    return bad


def patient_with_rules(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[str], bool]) -> None:
    """For rules in processes of their own; `hangs` says whether a completion is one that hangs."""
    send = pool._Child.send

    def patiently(self: Any, part: Any, samples: Any, deadline: float) -> None:
        send(self, part, samples, deadline if hangs(samples[self.index].completion) else PATIENCE)

    monkeypatch.setattr(pool._Child, "send", patiently)


def patient_with_boxes(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[str], bool]) -> None:
    """For a person's own verifier."""
    exchange = Slot._exchange

    def patiently(self: Slot, message: bytes, seconds: float, what: str) -> Any:
        short = what == "loading" or hangs(json.loads(message)["completion"])
        return exchange(self, message, seconds if short else PATIENCE, what)

    monkeypatch.setattr(Slot, "_exchange", patiently)
