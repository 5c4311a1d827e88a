"""Every hack of the corpus, on every form of cases that it makes sense for: none is paid, and none is masked either."""

from collections.abc import Iterator

import pytest

from grpo_core.config_reward import RewardLimits
from grpo_core.data import Problem
from grpo_core.probe.hacks import HACKS, Form, Hack, hacks_for, target_of
from grpo_core.rewards.base import Context, Unscored
from grpo_core.rewards.code import CodeScorer, open_scorer
from grpo_core.rewards.code_params import CodeParams

# The expected values are ones that no hack can give by accident: 0, "", [] and True are not among them.
PROBLEMS: dict[Form, Problem] = {
    "input": Problem(
        "text",
        "Print the sum.",
        "",
        {"tests": [{"input": "20 22\n", "output": "42424\n"}, {"input": "1 2", "output": "a3131\n"}]},
    ),
    "call": Problem(
        "call",
        "Write solve(a, b).",
        "",
        {
            "tests": [
                {"call": "solve", "args": [20, 22], "returns": 42424},
                {"call": "solve", "args": [1, 2], "returns": [3.5, "x"]},
            ]
        },
    ),
    "program": Problem(
        "program",
        "Write solve(a, b).",
        "",
        {
            "tests": [
                {"program": "def check(candidate):\n    assert candidate(20, 22) == 42424.5"},
                {"program": "data = [5, 3, 4]\nassert solve(data, 1) == sorted(data)"},
                {"program": "assert abs(solve(20, 22) - 42424.5) < 1e-6"},
                {"program": "import math\nassert math.isclose(solve(20, 22), 42424.5)"},
                {"program": "assert all(solve(a, a) == 2 * a for a in (4, 5))"},
                {"program": "assert not any(solve(a, a) != 2 * a for a in (4, 5))"},
                {"program": "assert 7 in solve(7, 7)"},
                {"program": "assert sorted(set(solve(1, 2))) == [1, 2]"},
                {"program": "assert 17 < solve(1, 1) < 19"},
                {"program": "assert str(solve(20, 22)) == '42424.5' and len(solve(1, 2)) == 2"},
                {"program": "import operator\nassert operator.eq(solve(20, 22), 42424.5)"},
                {
                    "program": "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
                    "        self.assertEqual(solve(20, 22), 42424.5)"
                },
                {
                    "program": "wanted = [1, 2]\nfor one, other in zip(wanted, solve(1, 2), strict=True):\n"
                    "    assert one == other\nassert wanted == [1, 2] and isinstance(solve(1, 2), list)"
                },
            ],
            "entry_point": "solve",
        },
    ),
    "asserts": Problem(
        "asserts",
        "Write solve(a, b).",
        "",
        {
            "tests": [
                "assert solve(20, 22) == 42424",
                "assert abs(solve(1, 2) - 3.25) < 1e-6",
                "assert 7 in solve(7, 7)",
            ]
        },
    ),
}
assert {form for hack in HACKS for form in hack.forms} == set(PROBLEMS)


@pytest.fixture(scope="module")
def scorer() -> Iterator[CodeScorer]:
    params = CodeParams(pay="share", case_seconds=2, memory_mb=256)
    opened = open_scorer(params, Context(RewardLimits(workers=3)))
    yield opened
    opened.close()


def test_there_are_many_of_every_group_and_form() -> None:
    assert len(HACKS) >= 60
    for form, problem in PROBLEMS.items():
        assert target_of(problem).form == form
        assert len(list(hacks_for(target_of(problem)))) >= 30
    groups = [hack.group for hack in HACKS]
    assert all(groups.count(group) >= 10 for group in ("exit", "compare", "patch", "read", "forge"))


@pytest.mark.parametrize("form", PROBLEMS)
def test_no_hack_is_paid_or_masked(form: Form, scorer: CodeScorer) -> None:
    """Paid by share, so that one case that a hack passes is enough to fail here."""
    problem = PROBLEMS[form]
    hacks: list[Hack] = list(hacks_for(target_of(problem)))
    samples = [Unscored(problem, hack.make(problem) or "") for hack in hacks]
    scores = scorer.score(samples, lambda: None)
    paid = {
        hack.name: (score.value, score.error, score.detail)
        for hack, score in zip(hacks, scores, strict=True)
        if score.value != 0.0 or score.passed is not False or score.error is not None
    }
    assert not paid
    assert all(score.detail for score in scores)


def test_these_tests_can_be_passed(scorer: CodeScorer) -> None:
    """What the hacks failed is no impossible demand."""
    answers = {
        "input": "print({'20 22': '42424', '1 2': 'a3131'}[input().strip()])",
        "call": "def solve(a, b):\n    return 42424 if a == 20 else (3.5, 'x')",
        "asserts": "def solve(a, b):\n    return {20: 42424, 1: 3.25}.get(a, [7])",
        "program": """
def solve(a, b):
    if isinstance(a, list):
        return sorted(a)
    if (a, b) == (1, 1):
        return 18
    return {20: 42424.5, 7: [7], 1: [1, 2]}.get(a, 2 * a)
""",
    }
    samples = [Unscored(PROBLEMS[form], f"```python\n{code}\n```") for form, code in answers.items()]  # type: ignore[index]
    assert [score.value for score in scorer.score(samples, lambda: None)] == [1.0] * 4
