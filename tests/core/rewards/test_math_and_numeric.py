"""math pays what is equal to MATH's answers and nothing else, never raises, and does not hang. numeric reads numbers
exactly, refuses costly LaTeX on both sides, and raises for no text."""

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.rewards import Runner
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.kinds.latex import parse_latex
from grpo_core.rewards.kinds.math import _read, _readable
from grpo_core.rewards.kinds.numeric import parse_number
from tests.core.rewards.scoring import rubric_of, scored, value
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


EXPENSIVE = st.recursive(
    st.sampled_from(
        [
            *HANGING,
            "x",
            "10^{300}",
            "(a+b+c+x+y+z)^{60}",
            "9999!",
            r"2^{9999}",
            r"\prod_{k=1}^{100000} k",
            r"\sqrt{1+x}",
        ]
    ),
    lambda inner: st.one_of(
        st.builds("({})^{{{}}}".format, inner, st.integers(2, 9999)),
        st.builds("({})^{{{}}}".format, inner, inner),
        st.builds(r"\{}({})".format, st.sampled_from(["sin", "tan", "ln", "exp", "sinh"]), inner),
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds("({})!".format, inner),
        st.builds(r"\binom{{{}}}{{{}}}".format, inner, inner),
        st.builds(r"\sqrt[7]{{{}}}".format, inner),
        st.builds("({})({}) - {}".format, inner, inner, inner),
    ),
    max_leaves=2,
)


@given(st.lists(EXPENSIVE, min_size=10, max_size=10))
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
def test_what_would_be_expensive_is_answered_without_the_deadline(texts):
    """A deadline that was passed would leave its class with the score."""
    references = ("42", r"\frac{x}{2}", "x=3", "x>1", r"\{1,2\}")
    samples = [ScoreRequest(Problem("p", "q", references[n % 5]), text) for n, text in enumerate(texts)]
    with Runner(rubric_of({"kind": "math", "params": {"extract": "whole"}}, limits={"workers": 1})) as runner:
        ends = [score.components["c0"] for score in runner.score(samples)]
    assert [(score.value, score.error_class) for score in ends] == [(0, None)] * len(ends)


@given(EXPENSIVE, st.sampled_from(["{} > x", "x = {}", r"\{{1, {}\}}", "({}, 1)", "[1, {}]", r"{} \cup (1,2)"]))
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_what_would_be_expensive_as_a_part_is_answered_too(text, around):
    for reference in ("x=3", "x>1", r"\{1,2\}", "(2,1)", "[1,2]"):
        assert scored("math", around.format(text), reference, extract="whole").value == 0


@pytest.mark.parametrize(("text", "costly"), cases("math_costly", "text", "costly"))
def test_costly_formulas_are_refused_before_they_are_evaluated_and_common_ones_are_not(text, costly):
    assert (_read(text) is None) == costly
    if not costly:
        assert value("math", text, text, extract="whole") == 1


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
