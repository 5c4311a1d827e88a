"""All reference solutions of GSM8K's test set earn 1 for their own answer, and 0 for the next problem's."""

from functools import cache

import pytest

from grpo_core.config import RewardConfig
from grpo_core.data import Problem, load_problems
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.numeric import parse_number
from tests.needs import TEST_DATA, needs

PROBLEMS = 1319


@cache
def problems() -> list[Problem]:
    return load_problems(TEST_DATA / "gsm8k" / "test.jsonl", "gsm8k")


def rewards(extract: str, pairs: list[tuple[Problem, str]]) -> list[float | None]:
    config = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": extract}}]}
    with Runner(Rubric(RewardConfig.model_validate(config))) as runner:
        scored = runner.score([Unscored(problem, completion) for problem, completion in pairs])
    return [one.reward for one in scored]


@pytest.mark.parametrize(
    ("extract", "form"),
    [
        ("hashes", "{}"),
        ("last_number", "{}"),
        ("answer_tag", "<think>{}</think><answer>{}</answer>"),
        ("boxed", r"{} So it is $\boxed{{{}}}$."),
    ],
)
def test_every_solution_earns_its_own_answer_and_not_the_next_one(extract: str, form: str) -> None:
    needs("public-sets")
    assert len(problems()) == PROBLEMS
    completions = []
    for problem in problems():
        solution = problem.meta["solution"]
        completions.append(form.format(solution, solution.rpartition("#### ")[2]))
    assert rewards(extract, list(zip(problems(), completions, strict=True))) == [1.0] * PROBLEMS

    following = [*problems()[1:], problems()[0]]
    same = [
        parse_number(one.answer) == parse_number(other.answer) for one, other in zip(problems(), following, strict=True)
    ]
    assert 0 < sum(same) < 0.1 * PROBLEMS  # so that the next line says something
    assert rewards(extract, list(zip(following, completions, strict=True))) == [float(equal) for equal in same]
