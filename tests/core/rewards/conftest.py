"""Scorers of code, runners of a person's own verifier and judges, closed after their tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from typing import Any

import pytest

from grpo_core.config.reward import RewardLimits
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import Runner
from grpo_core.rewards.base import Context
from grpo_core.rewards.code.kind import CodeScorer, open_scorer
from grpo_core.rewards.code.params import CodeParams
from grpo_core.rewards.judge.scorer import Judge

from .judge_server import Reply, Seen, Server, opened
from .scoring import code_sample, rubric_of


@pytest.fixture
def make() -> Iterator[Callable[..., Runner]]:
    with ExitStack() as stack:

        def runner(
            source: str, *, on_error: str = "mask", limits: dict[str, Any] | None = None, **params: Any
        ) -> Runner:
            component = {"name": "mine", "kind": "python", "params": {"source": source, **params}}
            rubric = rubric_of(component, on_error=on_error, limits=limits or {"workers": 2})
            return stack.enter_context(closing(Runner(rubric)))

        yield runner


@pytest.fixture(scope="module")
def code_scorer() -> Iterator[Callable[..., CodeScorer]]:
    with ExitStack() as stack:

        @cache
        def made(params: str, deadline: float) -> CodeScorer:
            limits = RewardLimits(workers=2, deadline_seconds=deadline)
            return stack.enter_context(closing(open_scorer(CodeParams.model_validate_json(params), Context(limits))))

        yield lambda deadline=120.0, **params: made(CodeParams.model_validate(params).model_dump_json(), deadline)


@pytest.fixture
def judged(code_scorer: Callable[..., CodeScorer]) -> Callable[..., ComponentScore]:
    def score(tests: Any, code: str, *, meta: dict[str, Any] | None = None, **params: Any) -> ComponentScore:
        return code_scorer(**params).score([code_sample(tests, code, **(meta or {}))], lambda: None)[0]

    return score


@pytest.fixture
def judge_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Judge]]:
    with ExitStack() as stack:
        yield lambda url, **params: stack.enter_context(closing(opened(url, monkeypatch, **params)))


@pytest.fixture
def judging(judge_at: Callable[..., Judge]) -> Iterator[Callable[..., tuple[Judge, Server]]]:
    """A judge with a server of its own."""
    with ExitStack() as stack:

        def with_server(answer: Callable[[Seen], Reply], **params: Any) -> tuple[Judge, Server]:
            server = stack.enter_context(Server(answer))
            return judge_at(server.url, allowed=True, **params), server

        yield with_server
