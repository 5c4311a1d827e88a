"""math reads what MATH's answers look like, pays what is equal to them and nothing else, and does not hang."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.math_symbolic import _parse, _readable
from tests.core.rewards import patience
from tests.core.rewards.scoring import told, value


def paid(answer: str, reference: str, **params: object) -> float | None:
    return value("math", answer, reference, extract="whole", **params)


# Each is another answer: the kinds of answers of the MATH benchmark (arXiv 2103.03874), and more.
DIFFERENT = [
    *(r"\left( 3, \frac{\pi}{2} \right)", r"x \in [-2,7]", r"6 - 5i", r"\text{Evelyn}", r"11\sqrt2", r"\frac{9}{7}"),
    *("2k+2", "A", r"5.4 \text{ cents}", r"137 \frac{1}{2}", r"3\sqrt{13}", r"\frac 59", r"-\frac{1}{3}", r"10,\! 080"),
    *("4, 6, 14, 15", "(6,31,-1)", "y = 2x+3", r"90^\circ", r"1\frac{4}{5}", "p - q", r"1 \pm \sqrt{19}", "E"),
    *(r"\begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix}", r"(-\infty, -8)\cup (8, \infty)", r"\text{east}", "r^5"),
    *("x^3+3x-6", r"\{1,2\}", "[1,2)", "x>1", "1<x<3", r"\frac{x+2}{7}", r"\sqrt{x^2+1}", r"\sin^2 x", "e^{-x}"),
    *(r"\log_2 x", "f(x)=3x", r"\$32,\!348", "2^{11}", r"\infty", r"\emptyset", r"2\pi r^2", r"\text{(B)}", "0.5x"),
    *(r"\frac{1}{2}(x+1)(x-1)", "7x^3 + 9", "3x(x+1)", "x = 1, x = 7", "(1, 9)", r"\frac{a}{b}", "abc", "50!"),
]


@pytest.mark.parametrize("reference", DIFFERENT)
def test_an_answer_is_equal_to_itself_in_every_dress(reference: str) -> None:
    for dress in ("{}", "${}$", r"\boxed{{{}}}", "{}.", " {}\n", r"\( {} \)"):
        assert paid(dress.format(reference), reference) == 1, dress


def test_no_two_different_answers_are_equal() -> None:
    step = 7  # every answer against seven others, not all pairs: sympy takes milliseconds for each
    wrong = [
        (given, reference)
        for place, reference in enumerate(DIFFERENT)
        for given in (DIFFERENT[(place + step * turn) % len(DIFFERENT)] for turn in range(1, step + 1))
        if given != reference and paid(given, reference) != 0
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("x^2+2x+1", "(x+1)^2"),
        ("2x+2", "2(x+1)"),
        ("x^2+x", "x(x+1)"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        ("1", r"\sin^2(x)+\cos^2(x)"),
        (r"2\cdot 3", "6"),
        ("2(3)", "6"),
        (r"\left(2\right)\left(3\right)", "6"),
        (r"\frac{1}{2}(3)", "1.5"),
        ("x = 5", "5"),
        ("5", "x = 5"),
        ("2+3=5", "5"),
        ("x=2+3=5", "5"),
        ("y = 3x", "3x"),
        ("4x+6y=12", "2x+3y=6"),
        ("1<x", "x>1"),
        ("x>1", r"(1,\infty)"),
        (r"(1,\infty)", "x>1"),
        ("2, 1", r"\{1, 2\}"),
        ("1, 2", "(1, 2)"),
        (r"1+\sqrt{2}, 1-\sqrt{2}", r"1 \pm \sqrt{2}"),
        (r"(5,\infty) \cup (-\infty,3]", r"(-\infty,3] \cup (5,\infty)"),
        ("π/2", r"\frac{\pi}{2}"),
        ("pi/2", r"\frac{\pi}{2}"),
        ("sqrt(2)", r"\sqrt{2}"),
        ("√2", r"\sqrt{2}"),
        ("sin(x)", r"\sin x"),
        ("x**2", "x^2"),
        ("x <= 3", r"x \le 3"),
        ("1 1/2", r"\frac{3}{2}"),
        ("0.333333", r"\frac{1}{3}"),
        ("0.333333", "1/3"),
        ("10^3", "1000"),
        ("1{,}000", "1000"),
        ("3", r"\log_2 8"),
        ("120", "5!"),
        ("East", r"\text{east}"),
        ("yes", r"\text{yes}"),
        (r"9\%", "0.09"),
        (r"9\%", r"\frac{9}{100}"),
    ],
)
def test_equal(answer: str, reference: str) -> None:
    assert paid(answer, reference) == 1


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        # math-verify takes each of these for equal
        ("2(3)", "5"),
        ("1 2", "3"),
        ("12_{3}", "12"),
        ("3=5", "5"),
        ("x=2+2=5", "5"),
        ("x = 3x", "3x"),
        (r"\{1,2\}", "(1,2)"),
        ("(1,2)", r"\{1,2\}"),
        ("x=1, x=3", "1<x<3"),
        ("1, 3", "1<x<3"),
        ("1<x<3", "x=1, x=3"),
        ("0.0000002", "0.0000001"),
        (r"9\%", "9"),
        ("A", "a"),
        # and these are wrong for it, too
        ("2,1", "(1,2)"),
        ("[1,2]", "(1,2)"),
        ("(2,1)", "(3,1)"),
        ("y=5", "x=5"),
        (r"\{1,2,3\}", r"\{1,2\}"),
        ("x^2+1", "(x+1)^2"),
        ("x<1", "x>1"),
        (r"-\infty", r"\infty"),
        ("0.3333", r"\frac{1}{3}"),
        (r"\text{on}", r"\text{no}"),
        ("on", r"\text{no}"),
        (r"\frac{1}{0}", "1"),
        # several answers, and none
        ("$4$ $5$", "5"),
        (r"\boxed{4} \boxed{5}", "5"),
        ("4 or 5 or 6", "5"),
        ("4, 5", "5"),
        ("", "5"),
        (".", "5"),
        ("$$", "5"),
        ("the answer", "5"),
        (r"\input{/etc/passwd}", "5"),
        ("x" * 1001, "x"),
    ],
)
def test_not_equal(answer: str, reference: str) -> None:
    assert paid(answer, reference) == 0


def test_what_math_verify_alone_would_pay() -> None:
    """The pairs above are there for a reason: if it grows stricter, what we catch may go."""
    from math_verify import verify

    for answer, reference in (("2(3)", "5"), ("3=5", "5"), (r"\{1,2\}", "(1,2)"), ("0.0000002", "0.0000001")):
        assert verify(_parse(reference), _parse(answer), timeout_seconds=None), (answer, reference)


def test_parameters() -> None:
    assert value("math", r"so \boxed{x+1}", "1+x", extract="boxed") == 1
    assert told("math", "x+1", "1+x", extract="boxed").detail == r"no \boxed{…}"
    assert paid(r"\sqrt{2}", "1.41", decimals=2) == 1
    assert paid(r"\sqrt{2}", "1.41") == 0
    assert paid("50 %", "50", percent="ignore") == 1
    assert paid(r"50\%", r"\frac{50}{1}", percent="ignore") == 1
    assert paid("50 %", "50") == 0


@pytest.mark.parametrize(
    "reference", ["", "$", r"\begin{cases}1\end{cases}", "$1$ and $2$", r"\frac{1}{0}", "a" * 1001]
)
def test_a_reference_that_cannot_be_read_is_an_error_of_the_sample(reference: str) -> None:
    found = told("math", "<answer>1</answer>", reference)
    assert (found.value, found.error_class) == (None, "sample")
    assert "cannot be read as mathematics" in (found.error or "")


# Reported for math-verify and sympy: issues 63 and 65 of huggingface/Math-Verify, 6835 and 21480 of sympy/sympy.
KNOWN_HANGS = [
    r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
    r"9^{9^{9^{9}}}",
    "10000000!",
    r"(10^{10})!",
    "2^{99999999}",
]


@pytest.mark.parametrize("text", KNOWN_HANGS)
def test_what_is_known_to_be_costly_is_refused_before_it_is_worked_out(text: str) -> None:
    assert told("math", text, "7", extract="whole").detail.startswith("not compared, too costly or not understood")


HANGING = [
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\sum_{k=1}^{10^9} \sin(k^2)",
    "(" * 150 + "x" + ")" * 150,
    r"\int_0^1 \sin(x^{x^{x}}) e^{-x^2} \ln(1+\tan x) dx",
    r"\prod_{k=1}^{10^8} (1+\frac{1}{k!})",
]


def test_what_hangs_is_killed_and_the_next_sample_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    patience.aside(monkeypatch, HANGING.__contains__)
    config = {
        "components": [{"name": "a", "kind": "math", "params": {"extract": "whole"}}],
        "limits": {"deadline_seconds": 2, "workers": 2},
    }
    problem = Problem("p", "q", r"\frac{x}{2}")
    texts = [text for hang in HANGING for text in (hang, "x/2")]
    with Runner(Rubric(RewardConfig.model_validate(config))) as runner:
        scored = runner.score([Unscored(problem, text) for text in texts])
    ends = [one.components["a"] for one in scored]
    assert [one.value for one in ends[1::2]] == [1] * len(HANGING)
    assert all(one.error_class in (None, "timeout", "memory") for one in ends[0::2]), ends
    assert all(one.value in (0, None) for one in ends[0::2]), ends
    assert any(one.error_class == "timeout" for one in ends[0::2]), "nothing here hangs any more: look for worse"


PIECES = [
    *("9", "99", "0.5", ".", ",", "+", "-", "*", "/", "(", ")", "{", "}", "[", "]", "^", "_", "=", "<", "%", " ", "x"),
    *(
        "y",
        "e",
        "i",
        "|",
        ":",
        ";",
        r"\frac{",
        "}{",
        r"\sqrt{",
        r"\pi",
        r"\left(",
        r"\right)",
        r"\cup",
        r"\infty",
        r"\{",
    ),
    *(r"\}", r"\in", r"\pm", r"\%", r"\text{cm}", r"\le", r"\ne", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", "&"),
    *(r"\sin", r"\log_", r"\emptyset", r"\cdot", r"^\circ", "f(x)", "1,000", r"\mathbb{R}", "$", "and", "or"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=9))
@settings(deadline=None, max_examples=40)
def test_any_text_is_paid_0_or_1_and_never_raises(pieces: list[str]) -> None:
    for reference in ("5", r"\frac{x}{2}", "[1,2)", "x=3", r"\{1,2\}"):
        found = told("math", "".join(pieces), reference, extract="whole")
        assert (found.value in (0, 1), found.error) == (True, None)


def test_what_math_verify_is_given() -> None:
    assert _readable(r"$\boxed{ 2(x+1) }$.") == r"2 \cdot (x+1)"
    assert _readable(r"10,\!000") == "10000"
    assert _readable("1 1/2") == r"1\frac{1}{2}"
    assert _readable("x − 1") == "x - 1"
    assert _readable("$1$ and $2$") is None
    assert _readable(r"\log_2(8)") == r"\log_2(8)"
    assert _readable(r"\sin^2(x)") == r"\sin^2(x)"
