"""Every rule that runs without a deadline takes time linear in the text, whatever a policy writes."""

import re
from typing import Any

import pytest

from grpo_core.data import Problem
from grpo_core.rewards import KINDS
from grpo_core.rewards.base import Unscored
from tests.core.rewards.hostile import assert_linear

TEXT = "The cat sat on the mat, and 37 + 45 = 82. " * 5
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("exact", {"extract": "whole"}, {"answer": TEXT}),
    ("numeric", {"extract": "whole"}, {"answer": "82"}),
    ("numeric", {"extract": "answer_tag"}, {"answer": "82"}),
    ("numeric", {"extract": "last_number"}, {"answer": "82"}),
    ("numeric", {"extract": "boxed"}, {"answer": r"\frac{1}{2}"}),
    ("r1_format", {}, {}),
    ("equations", {}, {}),
    ("choice", {"extract": "whole"}, {"answer": "B"}),
    ("choice", {"extract": "whole", "column": "choices"}, {"answer": "A", "choices": [TEXT, "the answer is A"]}),
    ("tags", {"sequence": ["think", "answer"], "pay": "share"}, {}),
    ("tags", {"sequence": ["think*", "answer*", "think*", "answer*", "think{2,5}", "answer+"], "between": "text"}, {}),
    ("length", {"unit": "words"}, {}),
    ("length", {"unit": "characters", "shape": "cosine", "right_params": {"extract": "whole"}}, {"answer": "82"}),
    ("soft_overlong", {}, {}),
    ("language", {"target": "en"}, {}),
    ("language", {"part": "think"}, {"prompt": TEXT}),
    *[
        ("similarity", {"measure": measure, "extract": "whole"}, {"answer": TEXT})
        for measure in ("ratio", "edit", "token_f1", "rouge_2", "rouge_l", "bleu", "chrf")
    ],
]


def test_every_kind_without_a_deadline_is_here() -> None:
    assert {kind for kind, _, _ in CASES} == {name for name, kind in KINDS.items() if kind.place == "here"}


@pytest.mark.parametrize(
    ("kind", "params", "fields"), CASES, ids=[f"{kind}-{number}" for number, (kind, _, _) in enumerate(CASES)]
)
def test_linear(kind: str, params: dict[str, Any], fields: dict[str, Any]) -> None:
    found = KINDS[kind]  # type: ignore[index]
    given = found.params.model_validate(params)
    problem = Problem("p", fields.get("prompt", "q"), fields.get("answer", ""), fields)

    def score(text: str) -> object:
        return found.rule()(Unscored(problem, text, len(text)), given)

    in_tags = params.get("extract") == "answer_tag" or params.get("part") == "think"
    assert_linear(score, (lambda text: f"<think>{text}</think><answer>{text}</answer>") if in_tags else str)


def test_a_quadratic_rule_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_linear(re.compile(r"\s+x").search, lambda text: " " * (len(text) // 3))
