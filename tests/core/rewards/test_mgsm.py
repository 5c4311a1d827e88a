"""In each of MGSM's eleven languages every reference answer earns 1, and 0 for the next problem's.

MGSM's files hold no worked solutions: the answer stands here in a sentence of the problem's language, as its
file has it.
"""

from functools import cache

import pytest

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.evaluate.suites.mathematics import LANGUAGES
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.numeric import parse_number
from tests.needs import TEST_DATA, needs

PROBLEMS = 250
SENTENCES = {
    "bn": "সুতরাং উত্তর হল {}।",
    "de": "Die Antwort ist also {}.",
    "en": "So the answer is {}.",
    "es": "Entonces la respuesta es {}.",
    "fr": "La réponse est donc {}.",
    "ja": "したがって、答えは{}です。",
    "ru": "Значит, ответ: {}.",
    "sw": "Kwa hiyo jibu ni {}.",
    "te": "కాబట్టి సమాధానం {}.",
    "th": "ดังนั้นคำตอบคือ {}",
    "zh": "所以答案是{}。",
}
FORMS = {
    "last_number": "{}",
    "hashes": "{}\n#### {}",
    "answer_tag": "<think>{}</think><answer>{}</answer>",
    "boxed": r"{} \boxed{{{}}}",
}


@cache
def rows(language: str) -> list[tuple[str, str]]:
    """(question, answer)"""
    lines = (TEST_DATA / "mgsm" / f"mgsm_{language}.tsv").read_text(encoding="utf-8").splitlines()
    return [(question, answer) for question, _, answer in (line.rpartition("\t") for line in lines)]


def test_all_languages_are_here() -> None:
    needs("public-sets")
    assert set(SENTENCES) == set(LANGUAGES) == {path.stem[-2:] for path in (TEST_DATA / "mgsm").glob("*.tsv")}


@pytest.mark.parametrize("language", SENTENCES)
def test_every_answer_earns_its_own_problem_and_not_the_next_one(language: str) -> None:
    needs("public-sets")
    assert len(rows(language)) == PROBLEMS
    problems = [Problem(f"{language}-{place}", *row) for place, row in enumerate(rows(language))]
    following = [*problems[1:], problems[0]]
    same = [
        parse_number(one.answer) == parse_number(other.answer) for one, other in zip(problems, following, strict=True)
    ]
    assert sum(same) < 0.1 * PROBLEMS
    for extract, form in FORMS.items():
        config = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": extract}}]}
        texts = [form.format(SENTENCES[language].format(one.answer), one.answer) for one in problems]
        with Runner(Rubric(RewardConfig.model_validate(config))) as runner:
            own = runner.score([Unscored(problem, text) for problem, text in zip(problems, texts, strict=True)])
            next_ones = runner.score([Unscored(problem, text) for problem, text in zip(following, texts, strict=True)])
        assert [one.reward for one in own] == [1.0] * PROBLEMS, extract
        assert [one.reward for one in next_ones] == [float(equal) for equal in same], extract


@pytest.mark.parametrize("language", SENTENCES)
def test_the_language_of_each_sentence_is_paid(language: str) -> None:
    needs("public-sets")
    config = {"components": [{"name": "stays", "kind": "language", "params": {"least_letters": 5}}]}
    with Runner(Rubric(RewardConfig.model_validate(config))) as runner:
        prompts = [Problem(f"{place}", question, "") for place, (question, _) in enumerate(rows(language))]
        scored = runner.score([Unscored(prompt, SENTENCES[language].format(7)) for prompt in prompts])
    assert sum(one.reward == 1 for one in scored) >= PROBLEMS - 1
