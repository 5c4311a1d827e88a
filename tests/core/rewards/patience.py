"""A short deadline for what hangs, minutes for all else: on a busy machine what is scored at once may take seconds."""

import json
from collections.abc import Callable, Sequence

import pytest

from grpo_core.rewards import pool
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.rubric import RubricPart
from grpo_core.rewards.session_slot import Answer, Slot

SECONDS = 600.0
Hangs = Callable[[str], bool]
"""Whether a completion is one that hangs."""


def aside(monkeypatch: pytest.MonkeyPatch, hangs: Hangs) -> None:
    """For rules in processes of their own."""
    ask = pool._Child.ask

    def asked(self: pool._Child, part: RubricPart, samples: Sequence[Unscored], deadline: float) -> None:
        assert self.place is not None
        ask(self, part, samples, deadline if hangs(samples[self.place].completion) else SECONDS)

    monkeypatch.setattr(pool._Child, "ask", asked)


def boxed(monkeypatch: pytest.MonkeyPatch, hangs: Hangs) -> None:
    """For a person's own verifier."""
    told = Slot._told

    def heard(self: Slot, message: bytes, seconds: float, what: str) -> Answer:
        short = what == "loading" or hangs(json.loads(message)["completion"])
        return told(self, message, seconds if short else SECONDS, what)

    monkeypatch.setattr(Slot, "_told", heard)
