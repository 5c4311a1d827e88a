"""Honest solutions are paid and wrong ones are not, whatever ordinary things they do."""

from collections.abc import Iterator

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.code import CodeScorer, open_scorer
from grpo_core.rewards.code_params import CodeParams
from tests.core.rewards.code_problems import ASKED, Asked
from tests.core.rewards.code_problems_programs import ASKED_PROGRAMS


def scorer_of(**params: object) -> CodeScorer:
    return open_scorer(CodeParams.model_validate(params), Context(RewardLimits(workers=2)))


@pytest.fixture(scope="module")
def scorers() -> Iterator[dict[str, CodeScorer]]:
    made: dict[str, CodeScorer] = {}
    yield made
    for scorer in made.values():
        scorer.close()


@pytest.mark.parametrize("asked", [*ASKED, *ASKED_PROGRAMS], ids=lambda asked: asked.name)
def test_right_is_paid_and_wrong_is_not(asked: Asked, scorers: dict[str, CodeScorer]) -> None:
    scorer = scorers.setdefault(repr(asked.params), scorer_of(**asked.params))
    samples = [asked.sample(asked.right), asked.sample(asked.wrong)]
    if asked.params.get("extract") == "whole":
        samples = [Unscored(asked.problem, code) for code in (asked.right, asked.wrong)]
    right, wrong = scorer.score(samples, lambda: None)
    assert (right.value, right.error) == (1.0, None), right
    assert (wrong.value, wrong.passed, wrong.error) == (0.0, False, None), wrong
    assert wrong.detail
