"""A judge of a server of the tests, opened and asked."""

from pathlib import Path

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.rewards import judge_calls
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.judge import Judge, JudgeParams

from .judge_server import Server

PROBLEM = Problem("p1", "2+2?", "4")
LIMITS = RewardLimits(retries=1, workers=1)


def judge_at(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cache: Path | None = None,
    limits: RewardLimits = LIMITS,
    **params: object,
) -> Judge:
    monkeypatch.setattr(judge_calls, "FIRST_PAUSE", 0.01)
    made = {"base_url": url, "model": "grader", "key_env": None, **params}
    return Judge(JudgeParams(**made), Context(limits=limits, cache=cache))


def opened(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cache: Path | None = None,
    limits: RewardLimits = LIMITS,
    **params: object,
) -> Judge:
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", server.place)
    return judge_at(server.url, monkeypatch, cache=cache, limits=limits, **params)


def values(judge: Judge, *completions: str) -> list[float | None]:
    return [one.value for one in judge.score([Unscored(PROBLEM, text) for text in completions], lambda: None)]
