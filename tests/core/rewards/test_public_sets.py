"""Answers of GSM8K and MGSM, in every form an answer may stand in, earn 1 for their own problem and 0 for the next;
rows of HumanEval, MBPP and reasoning-gym are judged by what they bring."""

import io
import json
import random
from functools import cache

import pytest

from grpo_core.data import Problem, load_problems, scan_problems
from grpo_core.evaluate.suites.mathematics import LANGUAGES
from grpo_core.rewards import Runner
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.kinds.numeric import parse_number
from tests.needs import TEST_DATA, needs
from tests.tables import cases

from .scoring import rubric_of

SENTENCES = dict(case.values for case in cases("language_sentences", "language", "sentence"))
FORMS = {
    "last_number": "{}",
    "hashes": "{}\n#### {}",
    "answer_tag": "<think>{}</think><answer>{}</answer>",
    "boxed": r"{} So it is $\boxed{{{}}}$.",
}
SIZES = pytest.mark.parametrize("size", [100, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
Solved = tuple[Problem, str]
"""A problem and its solution, the answer as its file writes it included."""


@cache
def gsm8k():
    needs("public-sets")
    problems = load_problems(TEST_DATA / "gsm8k" / "test.jsonl", "gsm8k")
    assert len(problems) == 1319
    return [(problem, problem.meta["solution"]) for problem in problems]


@cache
def mgsm():
    needs("public-sets")
    assert set(SENTENCES) == set(LANGUAGES) == {path.stem[-2:] for path in (TEST_DATA / "mgsm").glob("*.tsv")}
    solved = []
    for language, sentence in SENTENCES.items():
        lines = (TEST_DATA / "mgsm" / f"mgsm_{language}.tsv").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 250
        for number, (question, _, answer) in enumerate(line.rpartition("\t") for line in lines):
            solved.append((Problem(f"{language}-{number}", question, answer), sentence.format(answer)))
    return solved


def drawn(solved, size):
    return solved if size is None else random.Random(0).sample(solved, size)


def rewards(kind, params, samples):
    with Runner(rubric_of({"kind": kind, "params": params})) as runner:
        return [scored.reward for scored in runner.score(samples)]


@SIZES
@pytest.mark.parametrize("extract", FORMS)
@pytest.mark.parametrize("load", [gsm8k, mgsm], ids=["gsm8k", "mgsm"])
def test_every_answer_earns_its_own_problem_and_not_the_next(load, extract, size):
    solved = drawn(load(), size)
    problems = [problem for problem, _ in solved]
    texts = []
    for problem, solution in solved:
        # GSM8K's solutions end in "#### 18" as they are.
        answer = solution.rpartition("#### ")[2] if load is gsm8k else problem.answer
        form = "{}" if load is gsm8k and extract == "hashes" else FORMS[extract]
        texts.append(form.format(solution, answer))

    def paid(others):
        return rewards(
            "numeric", {"extract": extract}, [ScoreRequest(*pair) for pair in zip(others, texts, strict=True)]
        )

    assert paid(problems) == [1.0] * len(problems)
    following = [*problems[1:], problems[0]]
    answers = [parse_number(problem.answer) for problem in problems]
    same = [answer == other for answer, other in zip(answers, [*answers[1:], answers[0]], strict=True)]
    assert sum(same) < 0.1 * len(problems)  # so that the next line shows something
    assert paid(following) == [float(equal) for equal in same]


@SIZES
def test_the_language_of_each_sentence_is_paid(size):
    problems = [problem for problem, _ in drawn(mgsm(), size)]
    samples = [ScoreRequest(problem, SENTENCES[problem.id.partition("-")[0]].format(7)) for problem in problems]
    paid = rewards("language", {"least_letters": 5}, samples)
    assert sum(reward == 1 for reward in paid) >= 0.996 * len(samples)


def published(row):
    (problem,) = scan_problems(io.BytesIO(json.dumps([row]).encode()), "auto", source="x")
    return problem


def test_rows_of_humaneval_and_mbpp_are_judged_by_their_own_tests():
    """Also where the tests use what only `test_setup_code` imports."""
    needs("bwrap")
    check = "def check(candidate):\n    assert candidate(2) == 4\n"
    head = 'def double(x):\n    """Twice x."""\n'
    human = published({"task_id": "Own/0", "prompt": head, "entry_point": "double", "test": check})
    row = {"task_id": 7, "text": "Write double(x).", "test_list": ["assert double(2) == math.floor(4.5)"]}
    basic = published({**row, "test_setup_code": "import math"})
    right, wrong = (f"```python\n{head}    return {value}\n```" for value in ("2 * x", "x * x * x"))
    samples = [ScoreRequest(problem, text) for problem in (human, basic) for text in (right, wrong)]
    with Runner(rubric_of({"kind": "code"}, limits={"workers": 2})) as runner:
        assert [score.reward for score in runner.score(samples)] == [1, 0, 1, 0]


def test_rows_of_reasoning_gym_are_judged_by_their_task():
    needs("bwrap")
    needs("reasoning-gym")
    metadata = {"source_dataset": "chain_sum", "source_index": 0, "expression": "4 + 3"}
    problem = published({"question": "State the result: 4 + 3 =", "answer": "7", "metadata": metadata})
    samples = [ScoreRequest(problem, f"<answer>{answer}</answer>") for answer in ("7", "8")]
    with Runner(rubric_of({"kind": "reasoning_gym"}, limits={"workers": 2})) as runner:
        right, wrong = (score.reward for score in runner.score(samples))
    assert right == 1
    assert wrong < 0.1
