"""Honest solutions are paid and wrong ones are not, whatever ordinary things they do (code_rewards/problems.yaml)."""

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.data import Problem
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.code import CodeScorer, open_scorer
from grpo_core.rewards.code_params import CodeParams
from tests.tables import cases


@pytest.fixture(scope="module")
def scorers():
    opened: dict[str, CodeScorer] = {}
    yield opened
    for scorer in opened.values():
        scorer.close()


@pytest.mark.parametrize(
    ("tests", "program", "made", "right", "wrong", "params", "meta", "prompt"),
    cases("code_rewards/problems", "tests", "program", "made", "right", "wrong", "params", "meta", "prompt"),
)
def test_right_is_paid_and_wrong_is_not(tests, program, made, right, wrong, params, meta, prompt, scorers):
    if (key := repr(params)) not in scorers:
        scorers[key] = open_scorer(CodeParams.model_validate(params or {}), Context(RewardLimits(workers=2)))
    if program or made:
        tests = {"program": program} if program else eval(made or "")
    problem = Problem("p", prompt or "write a program", "", {"tests": tests, **(meta or {})})
    text = "{}" if "extract" in (params or {}) else "I think this is it:\n\n```python\n{}\n```\n\nHope that helps."
    samples = [Unscored(problem, text.replace("{}", code)) for code in (right, wrong)]
    paid, unpaid = scorers[key].score(samples, lambda: None)
    assert (paid.value, paid.error) == (1.0, None), paid
    assert (unpaid.value, unpaid.passed, unpaid.error) == (0.0, False, None), unpaid
    assert unpaid.detail
