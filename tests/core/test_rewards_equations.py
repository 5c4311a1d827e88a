"""The reward kind equations: what is read as one, what is true, and that no text can hurt it."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.records import ComponentScore
from grpo_core.rewards import Rubric, Runner


def scored(completion: str, **params: Any) -> ComponentScore:
    rubric = Rubric(RewardConfig.model_validate({"components": [{"name": "e", "kind": "equations", "params": params}]}))
    score = Runner(rubric).one(Problem("p", "q", "a"), completion)
    assert score.components["e"].error is None
    assert score.reward == score.components["e"].value
    return score.components["e"]


def read(completion: str, **params: Any) -> list[tuple[str, float]]:
    """The text that ends with each step, back to the end of the step before, and the step's value."""
    found, start = [], 0
    for step in scored(completion, **params).steps or ():
        found.append((completion[start : step.end], step.value))
        start = step.end
    return found


# ---------------------------------------------------------------------- what is paid


def test_value_is_the_share_of_true_ones_and_the_first_false_one_is_named() -> None:
    some = scored("37 + 45 = 82, then 82 * 2 = 165.\nSo 165 - 1 = 163 and 1 + 1 = 2")
    assert (some.value, some.passed) == (0.5, False)
    assert some.detail == "2 of 4 true; false: 82 * 2 = 165"
    assert [(step.end, step.value) for step in some.steps or ()] == [(12, 1.0), (31, 0.0), (49, 0.0), (63, 1.0)]
    every = scored("2+3=5 and 3*3=9")
    assert (every.value, every.passed, every.detail) == (1.0, True, "2 of 2 true")
    none = scored("The answer is 82.")
    assert (none.value, none.passed, none.detail, none.steps) == (0.0, False, "no equation", ())


@pytest.mark.parametrize(
    ("equation", "true"),
    [
        ("2 + 3 = 5", True),
        ("2 + 3 = 6", False),
        ("8 - 3 - 2 = 3", True),  # from left to right
        ("8 - 3 + 2 = 7", True),
        ("8 / 4 / 2 = 1", True),
        ("8 / 4 * 2 = 4", True),
        ("2 + 3 * 4 = 14", True),  # products first
        ("2 + 3 * 4 = 20", False),
        ("20 - 6 / 4 * 2 - 1 = 16", True),
        ("2 * -3 = -6", True),
        ("5 - -3 = 8", True),
        ("-3 + 4 = 1", True),
        ("2-3=-1", True),
        ("+3 + 4 = +7", True),
        ("0.1 + 0.2 = 0.3", True),  # not so in float
        (".5 + .5 = 1.0", True),
        ("1 / 3 = 0.3333333333333333", False),
        ("1 / 3 * 3 = 1", True),
        ("1,234 + 1 = 1,235", True),
        ("7 × 6 = 42", True),
        ("7 · 6 = 42", True),
        ("42 ÷ 6 = 7", True),
        ("7 \\times 6 = 42", True),
        ("42 \\div 6 \\cdot 2 = 14", True),
        ("10 − 3 = 7", True),
        ("10 – 3 = 7", True),
        ("$5 + $3 = $8", True),
        ("\\$5 + \\$3 = \\$8", True),
        ("2 - 5 = - 3", True),
        ("5 / 0 = 0", False),
        ("0 / 5 = 0", True),
        ("1 - 1 / 0 = 1", False),
        ("99999999999999999999999999999 + 1 = 100000000000000000000000000000", True),
    ],
)
def test_arithmetic(equation: str, true: bool) -> None:
    assert read(equation) == [(equation, float(true))]
    assert scored(equation).passed is true


@pytest.mark.parametrize(
    ("equation", "strict", "rounded"),
    [
        ("10 / 3 = 3.33", 0, 1),
        ("10 / 3 = 3.34", 0, 0),
        ("20 / 3 = 6.67", 0, 1),
        ("20 / 3 = 7", 0, 1),
        ("20 / 3 = 6", 0, 0),
        ("2 + 2 = 5", 0, 0),
        ("1 / 3 = 0.3333333333", 0, 1),
        ("2 + 2 = 4.00", 1, 1),
    ],
)
def test_rounded_results_are_true_when_asked_for(equation: str, strict: float, rounded: float) -> None:
    assert scored(equation).value == strict
    assert scored(equation, rounded=True).value == rounded


# ---------------------------------------------------------------------- what is an equation


@pytest.mark.parametrize(
    "around",
    [
        "So {} apples.",
        "**{}**",
        "**Step 1:** {} - good",
        "is **{}** ok",
        "(**{}**)",
        "*{}* so",
        "`{}`",
        "| {} |",
        "({})",
        "- {}",
        "* {}",
        "1. {}",
        "1) {}",
        "(2) {}",
        "<answer>{}</answer>",
        "<<{}>>5",
        "\\boxed{{{}}}",
        "${}$",
        "\\({}\\)",
        "x = {}",
        "{}, so",
        "{}; {}",
        "{}.\n{}\r\n{}",
        "y: {}?",
    ],
)
def test_an_equation_is_found_where_people_write_it(around: str) -> None:
    steps = read(around.replace("{}", "2 + 3 = 5").replace("{{", "{").replace("}}", "}"))
    assert [value for _, value in steps] == [1.0] * around.count("{}")
    assert all(text.endswith("2 + 3 = 5") for text, _ in steps)


def test_a_sign_may_open_an_equation() -> None:
    for text in ("(-3 + 4 = 1)", "x = -3 + 4 = 1", "-3 + 4 = 1", "so:\n-3 + 4 = 1", "- -3 + 4 = 1"):
        assert [value for _, value in read(text)] == [1.0], text
    assert [value for _, value in read("- 3 + 4 = 7")] == [1.0]  # a list's mark


def test_bold_numbers_are_numbers() -> None:
    assert read("2 + 3 = **5**") == [("2 + 3 = **5", 1.0)]


def test_chains() -> None:
    assert read("2 + 3 = 5 = 4 + 1 = 5") == [("2 + 3 = 5", 1.0), (" = 4 + 1 = 5", 1.0)]
    # A running calculation says 3 * 4 = 17 if read strictly; only its last link has one number on the right.
    assert read("3 * 4 = 12 + 5 = 17") == [("3 * 4 = 12 + 5 = 17", 1.0)]


@pytest.mark.parametrize(
    "text",
    [
        "5 = 5",  # no operation
        "5 = 2 + 3",
        "2 + 3",
        "2 + 3 = x",
        "x + 3 + 4 = 12",
        "x * -3 + 4 = 1",
        "2 + 3 = 5 + x",
        "2 + 3 = 6 - (1 + 0)",
        "2 + 3 = 5 * -1",
        "2x + 3 = 7",
        "x3 + 4 = 7",
        "(2 + 3) * 4 + 1 = 21",
        "2 * (3 + 4) + 1 = 15",
        "-(2 + 3) = -5",
        "2 + 3 = 5x",
        "2 + 3 = 4 + 1",
        "5 / 2 = 2 + \\frac{1}{2}",
        "\\frac{6}{2} + 1 = 4",
        "\\sqrt 4 + 1 = 3",
        "√4 + 1 = 3",
        "2**3 + 1 = 9",
        "2 ** 3 + 1 = 9",
        "x^2 + 1 = 5",
        "2² + 1 = 5",
        "2 + 3 = 2^3",
        "20 + 5% = 21",
        "20 + 5 = 25%",
        "3 + 2 = 5!",
        "12:30 + 1 = 13:30",
        "2 + 3 == 5",
        "2 + 3 != 6",
        "2 + 3 => 5",
        "2 + 3 <= 6",
        "2 + 3 ≈ 5",
        "2 +\n3 = 5",
        "2 + 3 =\n5",
        "5 apples + 3 apples = 8 apples",
        "12,34 + 1 = 1235",
        "1.2.3 + 1 = 2",
        "1e3 + 1 = 1001",
        "٣ + 4 = 7",
        "2 + 3 = 5kg",
        "1/2/",
        "",
    ],
)
def test_what_cannot_be_read_for_certain_is_no_step(text: str) -> None:
    assert scored(text).detail == "no equation"


def test_bounds() -> None:
    def ones(terms: int) -> str:
        return f"{'+'.join(['1'] * terms)}={terms}"

    assert scored(ones(20)).value == 1
    assert scored(ones(21)).detail == "no equation"
    assert scored(f"{'9' * 30} - {'9' * 30} = 0").value == 1
    assert scored(f"{'9' * 31} - {'9' * 31} = 0").detail == "no equation"
    assert len(scored(f"{'9' * 30}*{'9' * 30}*{'9' * 30}*{'9' * 30}*{'9' * 30}*{'9' * 30}*{'9' * 30}=1").detail) < 250


# ---------------------------------------------------------------------- hostile text

PIECES = [
    *("1", "23", "4.5", ".", ",", "+", "-", "−", "–", "*", "**", "/", "//", "×", "÷", "·", "=", "==", "<", ">", ":"),
    *("(", ")", "[", "]", "{", "}", "^", "%", "!", "\\", "\\times", "\\frac", "\\(", "\\\\", "$", "€", "x", "_", "²"),
    *(" ", "\n", "\r", "\u2028", "\u202e", "\u200b", "\ufffd", "\0", "\ud800", "😀", "é", "__import__('os')"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_paid_a_share_and_its_steps_lie_in_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    result = scored(text)
    steps = result.steps
    assert steps is not None
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert all(text[end - 1] in "0123456789" for end in ends)
    assert result.value == (sum(step.value for step in steps) / len(steps) if steps else 0)
    assert result.passed is (result.value == 1)


@given(st.text(max_size=100))
def test_any_text_at_all(text: str) -> None:
    assert 0 <= (scored(text).value or 0) <= 1


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 99),
    st.integers(-1, 1),
)
def test_what_python_says_of_whole_numbers(rest: list[tuple[str, int]], first: int, off: int) -> None:
    left = f"{first}" + "".join(f" {operation} {number}" for operation, number in rest)
    assert scored(f"{left} = {eval(left) + off}").value == float(off == 0)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 999))
def test_fractions_are_exact(above: int, below: int, more: int) -> None:
    whole = Fraction(above, below) * below + more
    assert scored(f"{above} / {below} * {below} + {more} = {whole}").value == 1


@pytest.mark.parametrize(
    "piece", ["1+", "1 + 1 = 2\n", "1+1=", "** ", "**1", "(", "1.", "1,111", "-", "=", "\\", " ", "9"]
)
def test_long_text_of_one_kind_is_read_in_one_pass(piece: str) -> None:
    # A reader that went back over what it has read would need minutes to hours for 100,000 characters.
    text = piece * (100_000 // len(piece))
    result = scored(text)
    assert len(result.steps or ()) == (text.count("\n") if "\n" in piece else 0)
