"""The tasks of reasoning-gym: problems made, their own answers and wrong ones scored in the sandbox."""

import io
import json

import pytest

from grpo_core.data import Problem, gym, scan_problems
from grpo_core.errors import ConfigError, DataError
from grpo_core.rewards import Runner, ScoreRequest
from tests.needs import needs

from .scoring import rubric_of

PAYS_ANY = {"game_of_life_halting"}
"""In 0.1.25 its scorer pays whatever is no answer to it; docs/tasks.md says so."""
SOME = ("chain_sum", "game_of_life_halting", "sudoku")


def rubric(**params):
    return rubric_of({"name": "task", "kind": "reasoning_gym", "params": params}, limits={"workers": 2})


@pytest.fixture(scope="module")
def runner():
    needs("bwrap")
    needs("reasoning-gym")
    with Runner(rubric()) as opened:
        yield opened


def made(name, size=2, **more):
    made = b"".join(gym.problems(name, size=size, seed=5, **more))
    return list(scan_problems(io.BytesIO(made), "auto", source=name))


def scored(runner, problems, *answers):
    """Each problem's score, with the answers in tags."""
    texts = [f"<think>so</think><answer>{answer}</answer>" for answer in answers]
    scored = runner.score([ScoreRequest(*pair) for pair in zip(problems, texts, strict=True)])
    return [score.components["task"] for score in scored]


@pytest.mark.parametrize("names", [SOME, pytest.param(gym.NAMES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_task_pays_its_own_answers_and_not_a_wrong_one(runner, names):
    problems = [problem for name in names for problem in made(name)]
    right = scored(runner, problems, *[problem.answer for problem in problems])
    wrong = scored(runner, problems, *["no such answer 7x"] * len(problems))
    none = [
        score.components["task"] for score in runner.score([ScoreRequest(problem, "No idea.") for problem in problems])
    ]
    assert [problem.id for problem, score in zip(problems, right, strict=True) if score.value != 1] == []
    paid = {problem.meta["task"]["name"] for problem, score in zip(problems, wrong, strict=True) if score.value == 1}
    assert paid <= PAYS_ANY
    assert all(score.value is not None for score in wrong)
    assert {(score.value, score.detail) for score in none} == {(0, "no <answer>…</answer>")}


def test_the_list_is_what_reasoning_gym_has_and_a_seed_decides_the_problems():
    """At least sixty tasks were asked for."""
    needs("reasoning-gym")
    from reasoning_gym.factory import DATASETS

    assert len(gym.NAMES) == len(set(gym.NAMES)) == 97
    assert set(gym.NAMES) | set(gym.LEFT_OUT) == set(DATASETS)
    assert not set(gym.NAMES) & set(gym.LEFT_OUT)
    first, again, other = (list(gym.problems("chain_sum", size=5, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({json.loads(line)["id"] for line in first}) == 5


def test_parameters_reach_generator_and_scorer():
    needs("bwrap")
    needs("reasoning-gym")
    [problem] = made("chain_sum", size=1, params={"min_terms": 4, "max_terms": 4})
    assert problem.meta["task"]["params"] == {"min_terms": 4, "max_terms": 4}
    other = made("gcd", size=1)[0]
    by_hand = Problem("p", "q", "a", {"task": "gcd"})
    with Runner(rubric(task="chain_sum")) as runner:
        scores = scored(runner, [problem, other, by_hand], problem.answer, "1", "1")
    assert [(score.value, score.error_class) for score in scores] == [(1, None), (None, "sample"), (None, "sample")]
    assert "made by the task gcd" in (scores[1].error or "")
    assert "made by no task" in (scores[2].error or "")


def test_part_of_the_marks_or_full_marks_only(runner):
    """polynomial and others pay for any answer; rectangle_count pays for a near one."""
    problems = made("rectangle_count", size=3)
    near = [str(int(problem.answer) + 1) for problem in problems]
    assert all(0 < (score.value or 0) < 1 for score in scored(runner, problems, *near))
    with Runner(rubric(full_marks_only=True)) as strict:
        scores = scored(strict, [*problems, problems[0]], *near, problems[0].answer)
    assert [score.value for score in scores] == [0, 0, 0, 1]


def test_what_an_answer_evaluates_meets_no_other_sample(runner):
    """An answer that a scorer evaluates may change that scorer: in a process that ends with the sample."""
    [problem] = made("chain_sum", size=1)
    changed = {**problem.meta["task"]["entry"], "answer": "no"}
    hostile = Problem("h", problem.prompt, "1", {"task": {**problem.meta["task"], "entry": changed}})
    for _ in range(2):
        assert scored(runner, [problem], problem.answer)[0].value == 1
        scored(runner, [hostile], "().__class__.__base__.__subclasses__()")


def test_what_is_refused():
    with pytest.raises(DataError, match="problem p has no 'task'"):
        rubric().check_problems([Problem("p", "q", "a")])
    for size in (0, 100_001):
        with pytest.raises(ConfigError, match="1 to 100,000"):
            next(gym.problems("gcd", size=size, seed=0))
    needs("reasoning-gym")
    for params, match in (({"terms": 3}, "max_terms"), ({"seed": 3}, "seed is given apart")):
        with pytest.raises(ConfigError, match=match):
            next(gym.problems("chain_sum", size=1, seed=0, params=params))
