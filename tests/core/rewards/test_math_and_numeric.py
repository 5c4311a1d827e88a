"""math pays what is equal to MATH's answers and nothing else, never raises, and does not hang. numeric reads numbers
exactly, refuses costly LaTeX on both sides, and raises for no text."""

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.rewards import Runner
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.kinds.latex import parse_latex
from grpo_core.rewards.kinds.math import _readable
from grpo_core.rewards.kinds.numeric import parse_number
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
        assert verify(parse_latex(reference), parse_latex(answer), timeout_seconds=None), (answer, reference)


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
        ends = [score.components["c0"] for score in runner.score([ScoreRequest(problem, text) for text in texts])]
    assert [score.value for score in ends[1::2]] == [1] * len(hanging)
    assert all(score.error_class in (None, "timeout", "memory") for score in ends[0::2]), ends
    assert all(score.value in (0, None) for score in ends[0::2]), ends
    assert any(score.error_class == "timeout" for score in ends[0::2]), "nothing here hangs any more: look for worse"


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


# ---------------------------------------------------------------------- numeric


@pytest.mark.parametrize(
    ("text", "number"), [*cases("numbers", "text", "number"), pytest.param("9" * 101, None, id="too long")]
)
def test_parse_number(text, number):
    assert parse_number(text) == (None if number is None else Fraction(number))


@given(st.fractions())
def test_fractions_are_read_exactly(number):
    text = f"{number.numerator}/{number.denominator}"
    assert parse_number(text) == (number if len(text) <= 100 else None)


@given(st.integers(-(10**15), 10**15))
def test_thousands_separators_are_read_as_python_writes_them(number):
    assert parse_number(f"{number:,}") == number


@given(st.text(max_size=50))
def test_any_text_is_a_number_or_not_but_never_an_error(text):
    assert parse_number(text) is None or isinstance(parse_number(text), Fraction)


@pytest.mark.parametrize(
    "text", [*cases("costly_latex", "text"), pytest.param("{" * 99 + "1" + "}" * 99, id="brackets")]
)
def test_costly_latex_is_refused_on_both_sides(text):
    answered = scored("numeric", text, "1", extract="whole")
    assert (answered.value, answered.error) == (0, None)
    assert answered.detail.startswith("not compared, too costly")
    wanted = scored("numeric", "1", text, extract="whole")
    assert (wanted.value, wanted.error_class) == (None, "sample")


NUMBER_SYMBOLS = r"9 99 9999999 0.5 . , + - * / ( ) { } ^ _ ! = $ % ^{99} ^{-9} ^{9 }{ \cdot \times \, \! \% e i x"
NUMBER_COMMANDS = r"\frac \frac{ \sqrt \sqrt[3]{ \pi \left( \right) ^\circ \text{cm} \boxed{ \binom \log"
NUMBER_PIECES = [" ", *NUMBER_SYMBOLS.split(" "), *NUMBER_COMMANDS.split(" ")]
LATEX = st.lists(st.sampled_from(NUMBER_PIECES), max_size=30).map("".join)


@given(LATEX, LATEX)
@settings(max_examples=150)
def test_any_latex_is_paid_0_or_1_or_refused(answer, reference):
    score = scored("numeric", answer, reference, extract="whole")
    assert score.value in (0, 1) if score.error is None else score.error_class == "sample"


@given(st.text(max_size=200))
def test_no_completion_makes_a_plain_rule_raise(completion):
    for kind in ("exact", "numeric", "r1_format"):
        assert value(kind, completion, "82") in (0, 1)


def test_numeric_loads_math_verify_only_for_latex_and_warns_of_nothing():
    code = """
import sys
from grpo_core.config.run import RewardConfig
from grpo_core.rewards import Rubric, Runner
from grpo_core.data import Problem
rubric = Runner(Rubric(RewardConfig.model_validate({"components": [{"name": "a", "kind": "numeric"}]})))
assert rubric.score_one(Problem("p", "q", "1/2"), "<answer>0.5</answer>").reward == 1
assert "math_verify" not in sys.modules and "sympy" not in sys.modules and "torch" not in sys.modules
assert rubric.score_one(Problem("p", "q", "1/2"), "<answer>\\\\frac{2}{4}</answer>").reward == 1
assert "math_verify" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
