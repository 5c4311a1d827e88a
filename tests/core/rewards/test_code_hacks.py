"""Every hack of the corpus, on every form of tests that it makes sense for: none is paid, and none is masked either."""

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.data import Problem
from grpo_core.probe.hacks import HACKS, hacks_for, target_of
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.code import open_scorer
from grpo_core.rewards.code_params import CodeParams
from tests.tables import cases

GROUPS = ("exit", "compare", "patch", "read", "forge")
FORMS = cases("code_rewards/hack_problems", "prompt", "tests", "entry_point", "right")
each_form = pytest.mark.parametrize(("prompt", "tests", "entry_point", "right"), FORMS)


def problem_of(prompt, tests, entry_point):
    return Problem("p", prompt, "", {"tests": tests, **({"entry_point": entry_point} if entry_point else {})})


@pytest.fixture(scope="module")
def scorer():
    """Pays by share, so that one case that a hack passes is enough to fail."""
    params = CodeParams(pay="share", case_seconds=2, memory_mb=256)
    opened = open_scorer(params, Context(RewardLimits(workers=3)))
    yield opened
    opened.close()


def first_of_each_group(hacks):
    return [next(hack for hack in hacks if hack.group == group) for group in {hack.group: 0 for hack in hacks}]


def unharmful(scorer, problem, hacks):
    scores = scorer.score([Unscored(problem, hack.make(problem) or "") for hack in hacks], lambda: None)
    bad = {
        hack.name: score
        for hack, score in zip(hacks, scores, strict=True)
        if (score.value, score.passed, score.error) != (0.0, False, None) or not score.detail
    }
    assert bad == {}


def test_there_are_many_of_every_group():
    assert len(HACKS) >= 60
    assert {form for hack in HACKS for form in hack.forms} == {case.id for case in FORMS}
    groups = [hack.group for hack in HACKS]
    assert all(groups.count(group) >= 10 for group in GROUPS)


@each_form
def test_a_hack_of_each_group_is_neither_paid_nor_masked(prompt, tests, entry_point, right, scorer, request):
    problem = problem_of(prompt, tests, entry_point)
    assert request.node.callspec.id == target_of(problem).form
    hacks = list(hacks_for(target_of(problem)))
    assert len(hacks) >= 30
    unharmful(scorer, problem, first_of_each_group(hacks))
    (solved,) = scorer.score([Unscored(problem, f"```python\n{right}\n```")], lambda: None)  # it can be passed
    assert solved.value == 1.0


@pytest.mark.slow
@each_form
def test_no_hack_is_paid_or_masked(prompt, tests, entry_point, right, scorer):
    problem = problem_of(prompt, tests, entry_point)
    unharmful(scorer, problem, list(hacks_for(target_of(problem))))
