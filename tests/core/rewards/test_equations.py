"""equations: no text can hurt it, and what it takes for true is true."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.rewards.scoring import scored, value

SYMBOLS = "1 23 4.5 . , + - − – * ** / // × ÷ · = == < > : ( ) [ ] { } ^ % ! \\ \\times \\frac \\( \\\\ $ € x _ ²"
ODD = (" ", "\n", "\r", "\u2028", "\u202e", "\u200b", "\ufffd", "\0", "\ud800", "😀", "é", "__import__('os')")


@given(
    st.one_of(st.lists(st.sampled_from([*SYMBOLS.split(" "), *ODD]), max_size=40).map("".join), st.text(max_size=100))
)
def test_any_text_is_paid_a_share_and_its_steps_lie_in_it(text):
    result = scored("equations", text)
    steps = result.steps
    assert steps is not None
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert all(text[end - 1] in "0123456789" for end in ends)
    assert result.value == (sum(step.value for step in steps) / len(steps) if steps else 0)
    assert (result.passed, result.error) == (result.value == 1, None)


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 99),
    st.integers(-1, 1),
)
def test_what_python_says_of_whole_numbers(rest, first, off):
    left = f"{first}" + "".join(f" {operation} {number}" for operation, number in rest)
    assert value("equations", f"{left} = {eval(left) + off}") == float(off == 0)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 999))
def test_fractions_are_exact(above, below, more):
    whole = Fraction(above, below) * below + more
    assert value("equations", f"{above} / {below} * {below} + {more} = {whole}") == 1


@pytest.mark.parametrize(
    "piece", ["1+", "1 + 1 = 2\n", "1+1=", "** ", "**1", "(", "1.", "1,111", "-", "=", "\\", " ", "9"]
)
def test_long_text_of_one_kind_is_read_in_one_pass(piece):
    # A reader that went back over what it has read would need minutes to hours for 20,000 characters.
    text = piece * (20_000 // len(piece))
    result = scored("equations", text)
    assert len(result.steps or ()) == (text.count("\n") if "\n" in piece else 0)
