"""Every task by name: problems made, their own answers and wrong ones scored in the sandbox."""

import json
from typing import Any

import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem, gym, scan_problems
from grpo_core.errors import ConfigError, DataError
from grpo_core.rewards import Rubric, Runner, Unscored
from tests.needs import needs

PAYS_ANY = {"game_of_life_halting"}
"""In 0.1.25 its scorer pays whatever is no answer to it; docs/tasks.md says so."""


def rubric(**params: Any) -> Rubric:
    components = [{"name": "task", "kind": "reasoning_gym", "params": params}]
    return Rubric(RewardConfig.model_validate({"components": components}))


def made(name: str, size: int = 2, **more: Any) -> list[Problem]:
    return list(scan_problems(gym.problems(name, size=size, seed=5, **more), "jsonl", source=name))


def tagged(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


def test_every_task_pays_its_own_answers_and_not_a_wrong_one() -> None:
    """At least sixty tasks were asked for; all of NAMES are walked."""
    needs("bwrap")
    needs("reasoning-gym")
    assert len(gym.NAMES) == len(set(gym.NAMES)) == 97
    problems = {name: made(name) for name in gym.NAMES}
    every = [problem for found in problems.values() for problem in found]
    with Runner(rubric()) as runner:
        right = runner.score([Unscored(problem, tagged(problem.answer)) for problem in every])
        wrong = runner.score([Unscored(problem, tagged("no such answer 7x")) for problem in every])
        none = runner.score([Unscored(problem, "I do not know.") for problem in every])
    assert [problem.id for problem, one in zip(every, right, strict=True) if one.reward != 1] == []
    paid = {problem.meta["task"]["name"] for problem, one in zip(every, wrong, strict=True) if (one.reward or 0) >= 1}
    assert paid <= PAYS_ANY
    assert all(one.reward is not None for one in wrong)
    assert {one.reward for one in none} == {0}
    assert none[0].components["task"].detail == "no <answer>…</answer>"


def test_the_list_is_what_reasoning_gym_has() -> None:
    needs("reasoning-gym")
    from reasoning_gym.factory import DATASETS

    assert set(gym.NAMES) | set(gym.LEFT_OUT) == set(DATASETS)
    assert not set(gym.NAMES) & set(gym.LEFT_OUT)


def test_same_arguments_same_problems() -> None:
    needs("reasoning-gym")
    one, again = (list(gym.problems("chain_sum", size=5, seed=1)) for _ in range(2))
    assert one == again
    assert list(gym.problems("chain_sum", size=5, seed=2)) != one
    assert len({json.loads(line)["id"] for line in one}) == 5


def test_parameters_reach_generator_and_scorer() -> None:
    needs("bwrap")
    needs("reasoning-gym")
    [problem] = made("chain_sum", size=1, params={"min_terms": 4, "max_terms": 4})
    assert problem.meta["task"]["params"] == {"min_terms": 4, "max_terms": 4}
    with Runner(rubric(task="chain_sum")) as runner:
        assert runner.one(problem, tagged(problem.answer)).reward == 1


def test_part_of_the_marks_or_full_marks_only() -> None:
    """polynomial and others pay for any answer; rectangle_count pays for a near one."""
    needs("bwrap")
    needs("reasoning-gym")
    problems = made("rectangle_count", size=6)
    near = [Unscored(problem, tagged(str(int(problem.answer) + 1))) for problem in problems]
    with Runner(rubric()) as runner:
        assert all(0 < (one.reward or 0) < 1 for one in runner.score(near))
    with Runner(rubric(full_marks_only=True)) as runner:
        assert [one.reward for one in runner.score(near)] == [0] * 6
        assert runner.one(problems[0], tagged(problems[0].answer)).reward == 1


def test_what_an_answer_evaluates_meets_no_other_sample() -> None:
    """An answer that a scorer evaluates may change that scorer: in a process that ends with the sample."""
    needs("bwrap")
    needs("reasoning-gym")
    [problem] = made("chain_sum", size=1)
    changed = {**problem.meta["task"]["entry"], "answer": "no"}
    hostile = Problem("h", problem.prompt, "1", {"task": {**problem.meta["task"], "entry": changed}})
    with Runner(rubric()) as runner:
        before = runner.one(problem, tagged(problem.answer)).reward
        runner.one(hostile, tagged("().__class__.__base__.__subclasses__()"))
        assert before == runner.one(problem, tagged(problem.answer)).reward == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [("chain_sums", "did you mean chain_sum?"), ("Sudoku!", "did you mean sudoku?"), ("composite", "choose those")],
)
def test_a_name_that_is_none_suggests_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rubric(task=name)
    [problem] = caught.value.problems
    assert problem.path == "reward.components.0.params.task"
    assert told in problem.message


def test_dataset_without_the_task_s_field_is_refused() -> None:
    with pytest.raises(DataError, match="problem p has no 'task', which the reward component 'task' reads"):
        rubric().check_problems([Problem("p", "q", "a")])


def test_problems_of_another_task_or_of_none_are_errors_of_the_sample() -> None:
    needs("bwrap")
    needs("reasoning-gym")
    [problem] = made("gcd", size=1)
    by_hand = Problem("p", "q", "a", {"task": "gcd"})
    with Runner(rubric(task="chain_sum")) as runner:
        other, none = runner.score([Unscored(problem, tagged("1")), Unscored(by_hand, tagged("1"))])
    assert other.components["task"].error_class == none.components["task"].error_class == "sample"
    assert "made by the task gcd" in (other.components["task"].error or "")
    assert "was made by no task" in (none.components["task"].error or "")


@pytest.mark.parametrize("size", [0, 100_001])
def test_sizes_that_cannot_be(size: int) -> None:
    with pytest.raises(ConfigError, match="1 to 100,000 problems"):
        next(gym.problems("gcd", size=size, seed=0))


def test_parameters_that_the_task_does_not_have() -> None:
    needs("reasoning-gym")
    with pytest.raises(ConfigError, match=r"does not take these parameters.*It has .*max_terms"):
        next(gym.problems("chain_sum", size=1, seed=0, params={"terms": 3}))
    with pytest.raises(ConfigError, match="seed is given apart"):
        next(gym.problems("chain_sum", size=1, seed=0, params={"seed": 3}))
