"""numeric reads numbers exactly, refuses costly LaTeX on both sides, and raises for no text."""

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.rewards.numeric import parse_number
from tests.core.rewards.scoring import scored, value
from tests.tables import cases


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


SYMBOLS = r"9 99 9999999 0.5 . , + - * / ( ) { } ^ _ ! = $ % ^{99} ^{-9} ^{9 }{ \cdot \times \, \! \% e i x"
COMMANDS = r"\frac \frac{ \sqrt \sqrt[3]{ \pi \left( \right) ^\circ \text{cm} \boxed{ \binom \log"
PIECES = [" ", *SYMBOLS.split(" "), *COMMANDS.split(" ")]
LATEX = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


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
from grpo_core.config import RewardConfig
from grpo_core.rewards import Rubric, Runner
from grpo_core.data import Problem
rubric = Runner(Rubric(RewardConfig.model_validate({"components": [{"name": "a", "kind": "numeric"}]})))
assert rubric.one(Problem("p", "q", "1/2"), "<answer>0.5</answer>").reward == 1
assert "math_verify" not in sys.modules and "sympy" not in sys.modules and "torch" not in sys.modules
assert rubric.one(Problem("p", "q", "1/2"), "<answer>\\\\frac{2}{4}</answer>").reward == 1
assert "math_verify" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
