"""A judge of a server of the tests, opened and asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.rewards import judge_calls
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.judge import Judge, JudgeParams

from .judge_server import Reply, Seen, Server

PROBLEM = Problem("p1", "2+2?", "4")
LIMITS = RewardLimits(retries=1, workers=1)


def judge_at(url: str, monkeypatch: pytest.MonkeyPatch, **params: Any) -> Judge:
    """`limits` and `cache` among the parameters are those of the run."""
    context = Context(limits=params.pop("limits", LIMITS), cache=params.pop("cache", None))
    monkeypatch.setattr(judge_calls, "FIRST_PAUSE", 0.01)
    made = {"base_url": url, "model": "grader", "key_env": None, **params}
    return Judge(JudgeParams(**made), context)


def opened(server: Server, monkeypatch: pytest.MonkeyPatch, **params: Any) -> Judge:
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
    return judge_at(server.url, monkeypatch, **params)


@contextmanager
def judging(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Seen], Reply], **params: Any
) -> Iterator[tuple[Judge, Server]]:
    """A judge with a server of its own."""
    with Server(answer) as server:
        judge = opened(server, monkeypatch, **params)
        try:
            yield judge, server
        finally:
            judge.close()


def values(judge: Judge, *completions: str) -> list[float | None]:
    return [one.value for one in judge.score([Unscored(PROBLEM, text) for text in completions], lambda: None)]
