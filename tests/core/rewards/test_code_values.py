"""What the kind `code` reads and compares: programs in completions, cases in problems, values out of a box."""

from typing import Any

import pytest

from grpo_core.errors import RewardError
from grpo_core.rewards.code_cases import CallCase, InputCase, ProgramCase, read_cases
from grpo_core.rewards.code_compare import same_text, same_value
from grpo_core.rewards.code_extract import extract_code
from grpo_core.rewards.code_inside_values import Unsendable, as_text, decode, encode, from_text
from tests.tables import cases

from .scoring import CALLS
from .scoring import code_problem as problem


@pytest.mark.parametrize(("completion", "how", "code"), cases("code_rewards/extract", "completion", "how", "code"))
def test_extract(completion, how, code):
    assert extract_code(completion, how) == code


def test_forms_of_cases():
    assert read_cases(problem('[{"input": "a", "output": "b"}]')).cases == (InputCase("a", "b"),)
    columns = {"inputs": ["a", ["b", "c"]], "outputs": ["1", "2"]}
    assert read_cases(problem(columns)).cases == (InputCase("a", "1"), InputCase("b\nc", "2"))
    asserts = read_cases(problem(["assert f((1, 2), k=[3]) == {4: 'x'}", "assert f(g) == 1"]))
    call = CallCase("f", {4: "x"}, ((1, 2),), {"k": [3]}, literal=True)
    assert asserts.cases == (call, ProgramCase("assert f(g) == 1"))
    assert (asserts.form, asserts.entry, asserts.named) == ("asserts", "f", False)
    assert read_cases(problem(["assert sum(3) == 1", "assert sum(4) == 2"])).entry == "sum"
    assert read_cases(problem("assert f(1) == g(2)")).cases == (ProgramCase("assert f(1) == g(2)"),)
    humaneval = read_cases(problem("def check(candidate):\n    assert candidate(1)", entry_point="f"))
    assert (humaneval.form, humaneval.entry, humaneval.named) == ("program", "f", True)
    with pytest.raises(RewardError, match="entry point"):
        read_cases(problem(CALLS, entry_point="f f"))


VALUES: list[Any] = [
    *(None, True, 0, -(2**70), 1.5, float("inf"), "ä\ud800\x00", b"\x00\xff", bytearray(b"a"), 1 + 2j),
    *([1, [2, (3, {4})]], {(1, "a"): {"b": None}}, {1, 2}, frozenset({3}), range(1, 10, 2)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_travel_and_come_back_as_built_in_types(value):
    back = decode(from_text(as_text(encode(value))))
    assert type(back) is type(value)
    assert back == value
    assert same_value(from_text(as_text(encode(value))), value, literal=True, tolerance=0) or isinstance(value, range)


def test_nothing_but_plain_values_travels():
    class Sneaky(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(decode(encode([Sneaky(3)]))[0]) is int
    with pytest.raises(Unsendable):
        encode(object())


@pytest.mark.parametrize(
    "forged", [["o", "os.system"], ["l"], ["d", [[1]]], {}, [[]], ["T", "datetime.eval", "x"], ["f", "1"]], ids=repr
)
def test_a_forged_value_is_none_and_equals_nothing(forged):
    with pytest.raises((ValueError, LookupError, TypeError)):
        decode(forged)
    assert not same_value(forged, 5, literal=True, tolerance=0)
    assert not same_value(forged, [5], literal=False, tolerance=0)


@pytest.mark.parametrize(
    ("given", "expected", "how", "same"), cases("code_rewards/compare", "given", "expected", "how", "same")
)
def test_compares(given, expected, how, same):
    if how in ("json", "python"):
        value = from_text(as_text(encode(eval(given))))
        assert same_value(value, eval(expected), literal=how == "python", tolerance=1e-9) is same
    else:
        assert same_text(given, expected, compare=how, tolerance=1e-9) is same
