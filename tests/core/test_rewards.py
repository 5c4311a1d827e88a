"""Rewards pay for what they say, refuse bad parameters early, and never hide an error."""

import hashlib
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import ConfigError, RewardError
from grpo_core.records import ComponentScore
from grpo_core.rewards import KINDS, Rubric, Runner, exact
from grpo_core.rewards.base import Params, Unscored, extract_answer
from grpo_core.rewards.kinds import Kind
from grpo_core.rewards.numeric import parse_number


def rubric(*components: dict[str, Any], **rest: Any) -> Runner:
    named = [{"name": f"c{n}", **component} for n, component in enumerate(components)]
    return Runner(Rubric(RewardConfig.model_validate({"components": named, **rest})))


def value(kind: str, completion: str, answer: str, **params: Any) -> float | None:
    return rubric({"kind": kind, "params": params}).one(Problem("p", "q", answer), completion).reward


# ---------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    ("how", "completion", "found"),
    [
        ("answer_tag", "<think>x</think><answer> 82 </answer>", "82"),
        ("answer_tag", "<answer>1</answer><answer>2</answer>", "2"),
        ("answer_tag", "<answer>82", None),
        ("answer_tag", "82</answer>", None),
        ("answer_tag", "</answer><answer>", None),
        ("hashes", "so\n#### 1,234\n", "1,234"),
        ("hashes", "#### 1\n#### 2\nmore", "2"),
        ("hashes", "82", None),
        ("boxed", r"thus \boxed{\frac{1}{2}} holds", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} then \boxed{2}", "2"),
        ("boxed", r"\boxed{1", None),
        ("last_number", "3 apples and 4.50 dollars.", "4.50"),
        ("last_number", "it is -3,200.", "-3,200"),
        ("last_number", "10-3", "3"),
        ("last_number", "a share of 3/4", "3/4"),
        ("last_number", "none", None),
        ("whole", "  82\n", "82"),
    ],
)
def test_extraction(how: Any, completion: str, found: str | None) -> None:
    assert extract_answer(completion, how) == found


# ---------------------------------------------------------------------- exact and r1_format


def test_exact() -> None:
    assert value("exact", "<answer> Paris </answer>", "Paris") == 1
    assert value("exact", "<answer>paris</answer>", "Paris") == 0
    assert value("exact", "<answer>paris</answer>", "Paris", ignore_case=True) == 1
    assert value("exact", "<answer>New\n York</answer>", "New York") == 1
    assert value("exact", "<answer>New\n York</answer>", "New York", ignore_whitespace=False) == 0
    assert value("exact", "Paris", "Paris") == 0
    assert value("exact", "Paris", "Paris", extract="whole") == 1


@pytest.mark.parametrize(
    ("completion", "detail"),
    [
        ("<think>a</think><answer>b</answer>", ""),
        (" <think>a</think>\n<answer>b</answer>\n", ""),
        ("<answer>b</answer>", "<think> is missing or out of order"),
        ("<think>a</think>", "<answer> is missing or out of order"),
        ("<think>a</think><answer>b", "</answer> is missing or out of order"),
        ("<answer>b</answer><think>a</think>", "<think> is missing or out of order"),
        ("<think><think>a</think></think><answer>b</answer>", "</think> is missing or out of order"),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "a tag is used twice"),
        ("<think>a</think> so <answer>b</answer>", "text before <answer>"),
        ("well <think>a</think><answer>b</answer>", "text before <think>"),
        ("<think>a</think><answer>b</answer> done", "text after </answer>"),
        ("<think> </think><answer>b</answer>", "<think> is empty"),
        ("<think>a</think><answer></answer>", "<answer> is empty"),
        ("", "<think> is missing or out of order"),
    ],
)
def test_r1_format(completion: str, detail: str) -> None:
    scored = rubric({"kind": "r1_format"}).one(Problem("p", "q", "a"), completion)
    assert scored.components["c0"].detail == detail
    assert scored.reward == (0 if detail else 1)
    assert scored.components["c0"].passed is not bool(detail)


def test_r1_format_strictness() -> None:
    spaced, empty = "<think>a</think>\n<answer>b</answer>", "<think></think><answer>b</answer>"
    assert value("r1_format", spaced, "a", allow_whitespace=False) == 0
    assert value("r1_format", empty, "a", allow_empty=True) == 1


# ---------------------------------------------------------------------- numeric


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("82", Fraction(82)),
        (" -7 ", Fraction(-7)),
        ("−7", Fraction(-7)),
        ("+7", Fraction(7)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1\u202f234", Fraction(1234)),
        ("1,23", None),
        ("12,34,567", None),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        (".", None),
        ("1e-3", Fraction(1, 1000)),
        ("1e9999", None),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4", Fraction(-3, 4)),
        ("1 1/2", Fraction(3, 2)),
        ("1/0", None),
        ("50%", Fraction(1, 2)),
        ("12.5 %", Fraction(1, 8)),
        ("$5.00", Fraction(5)),
        ("-$3", Fraction(-3)),
        ("$-3", Fraction(-3)),
        ("7 €", Fraction(7)),
        ("--7", None),
        ("$$$5", None),
        ("82 apples", None),
        ("eighty", None),
        ("٣", None),
        ("", None),
        ("$", None),
        ("9" * 101, None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_parse_number(text: str, number: Fraction | None) -> None:
    assert parse_number(text) == number


@given(st.fractions())
def test_fractions_are_read_exactly(number: Fraction) -> None:
    text = f"{number.numerator}/{number.denominator}"
    assert parse_number(text) == (number if len(text) <= 100 else None)


@given(st.integers(-(10**15), 10**15))
def test_thousands_separators_are_read_as_python_writes_them(number: int) -> None:
    assert parse_number(f"{number:,}") == number


@given(st.text(max_size=50))
def test_any_text_is_a_number_or_not_but_never_an_error(text: str) -> None:
    assert parse_number(text) is None or isinstance(parse_number(text), Fraction)


@pytest.mark.parametrize(
    ("answer", "reference", "paid"),
    [
        ("82", "82", 1),
        ("82.0", "82", 1),
        ("83", "82", 0),
        ("0.75", "3/4", 1),
        ("$1,000", "1000", 1),
        ("50%", "0.5", 1),
        ("50%", "50", 0),
        ("82, 83", "82", 0),
        ("", "82", 0),
        (r"\frac{3}{4}", "0.75", 1),
        (r"\dfrac{6}{8}", "3/4", 1),
        (r"$\frac{3}{5}$", "3/4", 0),
        (r"\sqrt{16}", "4", 1),
        (r"2^{3}", "8", 1),
        ("1/2", r"\frac{1}{2}", 1),
        (r"\frac{1}{", "0.5", 0),
        ("9^{9^{9^{9}}}", "1", 0),
        ("1000!^2", "1", 0),
        (r"\frac{1}{3}" + "+0" * 200, "1/3", 0),
        (r"\pi", "3.141593", 1),
        (r"\frac{1}{3}", "0.333333", 1),
        (r"\frac{333333}{1000000}", "1/3", 0),
        (r"\sqrt{8}", r"2\sqrt{2}", 1),
        (r"\sqrt{3+2\sqrt{2}}-\sqrt{2}", "1", 1),
        (r"10^{40}", r"10^{40}+1", 0),
        (r"1\frac{1}{2}", "3/2", 1),
        ("1 1/2", r"\frac{3}{2}", 1),
        (r"10,\!000", "10000", 1),
        (r"5\text{ cm}^2", "5", 1),
        (r"$x = \boxed{90^\circ}$", "90", 1),
        (r"50\%", "1/2", 1),
        (r"50\%", "50", 0),
        (r"2(3)", "5", 0),
        (r"\left(2\right)(3)", "5", 0),
        (r"12_{3}", "12", 0),
        (r"\frac{1}{0}", "1", 0),
    ],
)
def test_numeric(answer: str, reference: str, paid: float) -> None:
    assert value("numeric", f"<answer>{answer}</answer>", reference) == paid


def test_numeric_tolerance_percent_and_extraction() -> None:
    assert value("numeric", "<answer>3.14</answer>", "3.14159", tolerance=0.01) == 1
    assert value("numeric", "<answer>3.1</answer>", "3.14159", tolerance=0.01) == 0
    assert value("numeric", "<answer>50%</answer>", "50", percent="ignore") == 1
    assert value("numeric", r"<answer>50\%</answer>", "50", percent="ignore") == 1
    assert value("numeric", "… so #### 1,234", "1234", extract="hashes") == 1
    assert value("numeric", "that makes 82.", "82", extract="last_number") == 1


@pytest.mark.parametrize("reference", ["a dozen", "", "1,23", r"\text{yes}"])
def test_reference_that_is_no_number_raises(reference: str) -> None:
    with pytest.raises(RewardError, match=r"problem p: the reference answer .* is not a number"):
        rubric({"kind": "numeric"}, on_error="fail").one(Problem("p", "q", reference), "<answer>1</answer>")


LATEX_PIECES = [
    *("9", "99", "9999999", "0.5", ".", ",", "+", "-", "*", "/", "(", ")", "{", "}", "^", "_", "!", "=", "$", "%", " "),
    *("^{99}", "^{-9}", "^{9", r"\frac", r"\frac{", "}{", r"\sqrt", r"\sqrt[3]{", r"\pi", r"\left(", r"\right)"),
    *(r"\cdot", r"\times", r"\,", r"\!", r"\%", r"^\circ", r"\text{cm}", r"\boxed{", r"\binom", r"\log", "e", "i", "x"),
]
COSTLY = [
    "9^{9^{9}}",
    "9^9^9",
    r"7^{(99999999)}",
    r"7^{900 \cdot 900 \cdot 900}",
    "7^99 9999",
    r"7^{9\!999\,999}",
    "((9^{99})^{99})^{99}",
    r"\frac{\frac{9^{99}}{1}^{99}}{1}^{99}",
    r"\sqrt{9^{99}}^{99}",
    r"9^{-9999}",
    r"9^{\frac{99999999}{1}}",
    r"9^{\left(99\right)}",
    "$9**9**9**9$",
    r"\left(999!\right)!",
    r"\binom{99999}{999}",
    r"\sum_{k=1}^{999}k",
    r"\int_0^1 x",
    r"\log_{2} 8",
    r"(1+x)^{999}",
    r"\sqrt[999]{2}",
    "{" * 99 + "1" + "}" * 99,
]


@pytest.mark.parametrize("text", COSTLY)
def test_costly_latex_is_refused_on_both_sides(text: str) -> None:
    problem, given = Problem("p", "q", "1"), f"<answer>{text}</answer>"
    scored = rubric({"kind": "numeric"}).one(problem, given).components["c0"]
    assert (scored.passed, scored.error) == (False, None)
    assert scored.detail.startswith("not compared, too costly or not understood: ")
    with pytest.raises(RewardError, match="is not a number that can be compared: write it with digits"):
        rubric({"kind": "numeric"}, on_error="fail").one(Problem("p", "q", text), "<answer>1</answer>")


@given(st.lists(st.sampled_from(LATEX_PIECES), max_size=30), st.lists(st.sampled_from(LATEX_PIECES), max_size=30))
@settings(deadline=None, max_examples=150)
def test_any_latex_is_paid_0_or_1_or_refused(answer: list[str], reference: list[str]) -> None:
    problem = Problem("p", "q", "".join(reference))
    scored = rubric({"kind": "numeric", "params": {"extract": "whole"}}).one(problem, "".join(answer))
    error = scored.components["c0"].error
    assert scored.reward in (0, 1) if error is None else error.startswith("RewardError: problem p: the reference")


def test_numeric_loads_math_verify_only_for_latex_and_warns_of_nothing() -> None:
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


# ---------------------------------------------------------------------- rubric


def test_weighted_sum_and_components() -> None:
    both = rubric({"kind": "r1_format", "weight": 0.25}, {"kind": "numeric", "weight": 2})
    problem = Problem("p", "q", "82")
    scored = both.one(problem, "<think>a</think><answer>82</answer>")
    assert scored.reward == 2.25
    assert scored.components["c1"].detail == "82"
    assert all(component.seconds > 0 for component in scored.components.values())
    assert both.one(problem, "<answer>82</answer>").reward == 2
    assert rubric({"kind": "exact", "weight": -1}).one(problem, "<answer>82</answer>").reward == -1


def test_every_wrong_parameter_is_told_with_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        rubric({"kind": "exact", "params": {"extract": "tag"}}, {"kind": "numeric", "params": {"tolerence": 1}})
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert set(found) == {"reward.components.0.params.extract", "reward.components.1.params.tolerence"}
    assert "'answer_tag', 'hashes', 'boxed', 'last_number' or 'whole'" in found["reward.components.0.params.extract"]
    assert found["reward.components.1.params.tolerence"].endswith("allowed here: extract, tolerance, percent")
    assert "reward.components.0.params.extract" in str(caught.value)


def test_number_that_no_digest_can_hold_is_told_with_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        rubric({"kind": "exact"}, {"kind": "numeric", "params": {"tolerance": 10**17}})
    assert [problem.path for problem in caught.value.problems] == ["reward.components.1.params.tolerance"]
    assert "write a large number as a decimal" in str(caught.value)
    assert len(rubric({"kind": "numeric", "params": {"tolerance": 1e17}}).rubric.digest) == 64


def test_digest_names_exactly_this_reward() -> None:
    # RFC 8785 of {"components":[{"kind":"exact","name":"c0","params":{},"weight":1}],"on_error":"mask"}
    assert rubric({"kind": "exact"}).rubric.digest == _sha256(
        '{"components":[{"kind":"exact","name":"c0","params":{},"weight":1}],"on_error":"mask"}'
    )
    assert rubric({"kind": "exact", "weight": 2}).rubric.digest != rubric({"kind": "exact"}).rubric.digest


class _Raising(Params):
    """Parameters of the kind that these tests register: one that fails as user code does."""


@pytest.fixture(params=[ZeroDivisionError("division by zero"), float("nan"), float("inf"), None])
def failing_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def score(sample: Unscored, params: _Raising) -> ComponentScore:
        if isinstance(request.param, Exception):
            raise request.param
        return ComponentScore.model_construct(value=request.param)

    monkeypatch.setattr(exact, "score", score)
    monkeypatch.setitem(KINDS, "exact", Kind(_Raising, "here", "exact", "fails"))
    return str(request.param)


def test_on_error_mask_leaves_the_sample_out_and_keeps_the_reason(failing_kind: str) -> None:
    both = rubric({"kind": "exact"}, {"kind": "r1_format"}, on_error="mask")
    scored = both.one(Problem("p", "q", "a"), "<think>a</think><answer>b</answer>")
    assert scored.reward is None
    assert scored.components["c0"].value is None
    assert scored.components["c0"].error is not None
    assert failing_kind in scored.components["c0"].error
    assert scored.components["c1"].value == 1


def test_on_error_zero_pays_nothing_even_when_the_rest_passed(failing_kind: str) -> None:
    both = rubric({"kind": "exact"}, {"kind": "r1_format"}, on_error="zero")
    assert both.one(Problem("p", "q", "a"), "<think>a</think><answer>b</answer>").reward == 0


def test_on_error_fail_names_component_and_problem(failing_kind: str) -> None:
    with pytest.raises(RewardError, match="reward component 'c0' failed on problem p"):
        rubric({"kind": "exact"}, on_error="fail").one(Problem("p", "q", "a"), "x")


def test_reward_too_large_to_average_is_an_error() -> None:
    scored = rubric({"kind": "exact", "weight": 1e308}).one(Problem("p", "q", "a"), "<answer>a</answer>")
    assert scored.reward is None
    assert "not a number up to 1e+09" in (scored.components["c0"].error or "")


@given(st.text(max_size=200))
def test_no_completion_makes_a_reward_raise(completion: str) -> None:
    for kind in ("exact", "numeric", "r1_format"):
        assert value(kind, completion, "82") in (0, 1)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
