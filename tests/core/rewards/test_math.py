"""math pays what is equal to MATH's answers and nothing else, never raises, and does not hang."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.rewards import Runner
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.math_symbolic import _parse, _readable
from tests.core.rewards.scoring import patient_with_rules, rubric_of, scored, value
from tests.tables import cases

ANSWERS: list[str] = [case.values[0] for case in cases("math_answers", "answer")]


@pytest.mark.parametrize("reference", ANSWERS)
def test_an_answer_is_equal_to_itself_in_every_dress(reference):
    for dress in ("{}", "${}$", r"\boxed{{{}}}", "{}.", " {}\n", r"\( {} \)"):
        assert value("math", dress.format(reference), reference, extract="whole") == 1, dress


def test_no_two_different_answers_are_equal():
    pairs = [
        (answer, reference)
        for number, reference in enumerate(ANSWERS)
        for answer in (ANSWERS[(number + 7 * turn) % len(ANSWERS)] for turn in range(1, 8))  # all pairs take minutes
        if answer != reference
    ]
    assert [pair for pair in pairs if value("math", *pair, extract="whole") != 0] == []


def test_what_math_verify_alone_would_pay():
    """These are among the cases for a reason: if it grows stricter, what we catch may go."""
    from math_verify import verify

    for answer, reference in (("2(3)", "5"), ("3=5", "5"), (r"\{1,2\}", "(1,2)"), ("0.0000002", "0.0000001")):
        assert verify(_parse(reference), _parse(answer), timeout_seconds=None), (answer, reference)


HANGING = [
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\sum_{k=1}^{10^9} \sin(k^2)",
    "(" * 150 + "x" + ")" * 150,
    r"\int_0^1 \sin(x^{x^{x}}) e^{-x^2} \ln(1+\tan x) dx",
    r"\prod_{k=1}^{10^8} (1+\frac{1}{k!})",
]


@pytest.mark.parametrize("hanging", [HANGING[:1], pytest.param(HANGING, marks=pytest.mark.slow)], ids=["one", "all"])
def test_what_hangs_is_killed_and_the_next_sample_is_scored(monkeypatch, hanging):
    patient_with_rules(monkeypatch, hanging.__contains__)
    limits = {"deadline_seconds": 1, "workers": 1}
    rubric = rubric_of({"kind": "math", "params": {"extract": "whole"}}, limits=limits)
    problem = Problem("p", "q", r"\frac{x}{2}")
    texts = [text for hang in hanging for text in (hang, "x/2")]
    with Runner(rubric) as runner:
        ends = [one.components["c0"] for one in runner.score([Unscored(problem, text) for text in texts])]
    assert [one.value for one in ends[1::2]] == [1] * len(hanging)
    assert all(one.error_class in (None, "timeout", "memory") for one in ends[0::2]), ends
    assert all(one.value in (0, None) for one in ends[0::2]), ends
    assert any(one.error_class == "timeout" for one in ends[0::2]), "nothing here hangs any more: look for worse"


SYMBOLS = "9 99 0.5 . , + - * / ( ) { } [ ] ^ _ = < % x y e i | : ; & $ and or f(x) 1,000 }{"
COMMANDS = (
    r"\frac{ \sqrt{ \pi \left( \right) \cup \infty \{ \} \in \pm \% \text{cm} \le \ne \\ \sin \log_ \cdot \emptyset "
    r"^\circ \mathbb{R} \begin{pmatrix} \end{pmatrix}"
)
PIECES = [" ", *SYMBOLS.split(" "), *COMMANDS.split(" ")]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@settings(max_examples=40)
def test_any_text_is_paid_0_or_1_and_never_raises(text):
    for reference in ("5", r"\frac{x}{2}", "[1,2)", "x=3", r"\{1,2\}"):
        score = scored("math", text, reference, extract="whole")
        assert (score.value in (0, 1), score.error) == (True, None)


@pytest.mark.parametrize(("text", "readable"), cases("math_readable", "text", "readable"))
def test_what_math_verify_is_given(text, readable):
    assert _readable(text) == readable
