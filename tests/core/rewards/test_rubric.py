"""A rubric pays the weighted sum of its components, refuses bad parameters early, and never hides an error."""

import hashlib

import pytest

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import ConfigError, RewardError
from grpo_core.records import ComponentScore
from grpo_core.rewards import KINDS, Rubric, Runner, exact
from grpo_core.rewards.base import Params
from grpo_core.rewards.kinds import Kind

PROBLEM = Problem("p", "q", "82")


def rubric(*components, **rest):
    named = [{"name": f"c{n}", **component} for n, component in enumerate(components)]
    return Runner(Rubric(RewardConfig.model_validate({"components": named, **rest})))


def test_weighted_sum_and_components():
    both = rubric({"kind": "r1_format", "weight": 0.25}, {"kind": "numeric", "weight": 2})
    scored = both.one(PROBLEM, "<think>a</think><answer>82</answer>")
    assert scored.reward == 2.25
    assert scored.components["c1"].detail == "82"
    assert all(component.seconds > 0 for component in scored.components.values())
    assert both.one(PROBLEM, "<answer>82</answer>").reward == 2
    assert rubric({"kind": "exact", "weight": -1}).one(PROBLEM, "<answer>82</answer>").reward == -1


def test_every_wrong_parameter_is_listed_with_its_path():
    with pytest.raises(ConfigError) as caught:
        rubric({"kind": "exact", "params": {"extract": "tag"}}, {"kind": "numeric", "params": {"tolerence": 1}})
    paths = ["reward.components.0.params.extract", "reward.components.1.params.tolerence"]
    assert [problem.path for problem in caught.value.problems] == paths
    assert all(path in str(caught.value) for path in paths)


def test_digest_names_exactly_this_reward():
    # RFC 8785 of the reward; a decimal holds a number that no whole number may
    canonical = '{"components":[{"kind":"exact","name":"c0","params":{},"weight":1}],"on_error":"mask"}'
    assert rubric({"kind": "exact"}).rubric.digest == hashlib.sha256(canonical.encode()).hexdigest()
    assert rubric({"kind": "exact", "weight": 2}).rubric.digest != rubric({"kind": "exact"}).rubric.digest
    assert len(rubric({"kind": "numeric", "params": {"tolerance": 1e17}}).rubric.digest) == 64


class _Raising(Params):
    """Parameters of the kind that these tests register: one that fails as user code does."""


@pytest.fixture(params=[ZeroDivisionError("division by zero"), float("nan"), float("inf"), None], ids=str)
def failing_kind(request, monkeypatch):
    def score(sample, params):
        if isinstance(request.param, Exception):
            raise request.param
        return ComponentScore.model_construct(value=request.param)

    monkeypatch.setattr(exact, "score", score)
    monkeypatch.setitem(KINDS, "exact", Kind(_Raising, "here", "exact", "fails"))
    return str(request.param)


@pytest.mark.parametrize(("on_error", "reward"), [("mask", None), ("zero", 0)])
def test_a_failed_component_decides_the_reward_and_keeps_its_reason(failing_kind, on_error, reward):
    both = rubric({"kind": "exact"}, {"kind": "r1_format"}, on_error=on_error)
    scored = both.one(PROBLEM, "<think>a</think><answer>b</answer>")
    assert scored.reward == reward
    assert scored.components["c0"].value is None
    assert failing_kind in (scored.components["c0"].error or "")
    assert scored.components["c1"].value == 1


def test_on_error_fail_names_component_and_problem(failing_kind):
    with pytest.raises(RewardError, match="'c0' failed on problem p"):
        rubric({"kind": "exact"}, on_error="fail").one(PROBLEM, "x")


def test_reward_too_large_to_average_is_an_error():
    scored = rubric({"kind": "exact", "weight": 1e308}).one(PROBLEM, "<answer>82</answer>")
    assert scored.reward is None
    assert "1e+09" in (scored.components["c0"].error or "")
