"""What the kind `code` reads and compares: programs in completions, cases in problems, values out of a box."""

from typing import Any

import pytest

from grpo_core.data import Problem
from grpo_core.errors import RewardError
from grpo_core.rewards.code_cases import CallCase, InputCase, ProgramCase, read_cases
from grpo_core.rewards.code_compare import same_text, same_value
from grpo_core.rewards.code_extract import extract_code
from grpo_core.rewards.code_inside_values import Unsendable, as_text, decode, encode, from_text

CALLS = [{"call": "f", "args": [n], "returns": n + 1} for n in range(4)]


def problem(tests: Any, **meta: Any) -> Problem:
    return Problem("p7", "Write a program.", "", {"tests": tests, **meta})


@pytest.mark.parametrize(
    ("completion", "how", "code"),
    [
        ("```python\na\n```\nso\n```py\nb\n```\nprints\n```\nout\n```", "fenced", "b\n"),
        ("```\na\n```\n```\nb\n```", "fenced", "b\n"),
        ("```python title=x\na\n```", "fenced", "a\n"),
        ("```python\na", "fenced", None),
        ("```bash\nls\n```", "fenced", None),
        ("no code", "fenced", None),
        ("  ```python\n  a\n  ```", "fenced", "  a\n"),
        ("x <answer>a = 1</answer>", "answer_tag", "a = 1"),
        ("<answer>\n```python\na\n```\n</answer>", "answer_tag", "a\n"),
        ("a", "answer_tag", None),
        ("    return 1", "whole", "    return 1"),
        ("  \n", "whole", None),
    ],
)
def test_extract(completion: str, how: Any, code: str | None) -> None:
    assert extract_code(completion, how) == code


def test_forms_of_cases() -> None:
    assert read_cases(problem('[{"input": "a", "output": "b"}]')).cases == (InputCase("a", "b"),)
    assert read_cases(problem({"inputs": ["a", ["b", "c"]], "outputs": ["1", "2"]})).cases == (
        InputCase("a", "1"),
        InputCase("b\nc", "2"),
    )
    asserts = read_cases(problem(["assert f((1, 2), k=[3]) == {4: 'x'}", "assert f(g) == 1"]))
    assert asserts.cases == (
        CallCase("f", {4: "x"}, ((1, 2),), {"k": [3]}, literal=True),
        ProgramCase("assert f(g) == 1"),
    )
    assert (asserts.form, asserts.entry, asserts.named) == ("asserts", "f", False)
    assert read_cases(problem(["assert sum(3) == 1", "assert sum(4) == 2"])).entry == "sum"
    assert read_cases(problem("assert f(1) == g(2)")).cases == (ProgramCase("assert f(1) == g(2)"),)
    humaneval = read_cases(problem("def check(candidate):\n    assert candidate(1)", entry_point="f"))
    assert (humaneval.form, humaneval.entry, humaneval.named) == ("program", "f", True)
    with pytest.raises(RewardError, match="the entry point 'f f' is no name"):
        read_cases(problem(CALLS, entry_point="f f"))


VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**70),
    1.5,
    float("inf"),
    "ä\ud800\x00",
    b"\x00\xff",
    bytearray(b"a"),
    [1, [2, (3, {4})]],
    {(1, "a"): {"b": None}},
    {1, 2},
    frozenset({3}),
    1 + 2j,
    range(1, 10, 2),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_travel_and_come_back_as_built_in_types(value: Any) -> None:
    back = decode(from_text(as_text(encode(value))))
    assert type(back) is type(value)
    assert back == value
    assert same_value(from_text(as_text(encode(value))), value, literal=True, tolerance=0) or isinstance(value, range)


def test_nothing_but_plain_values_travels() -> None:
    class Sneaky(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert type(decode(encode([Sneaky(3)]))[0]) is int
    with pytest.raises(Unsendable):
        encode(object())
    for forged in (["o", "os.system"], ["l"], ["d", [[1]]], {}, [[]], ["T", "datetime.eval", "x"], ["f", "1"]):
        with pytest.raises((ValueError, LookupError, TypeError)):
            decode(forged)
        assert not same_value(forged, 5, literal=True, tolerance=0)
        assert not same_value(forged, [5], literal=False, tolerance=0)


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ({2, 1}, [1, 2], True),
        ({1}, [1, 1], False),
        ({1: "a"}, {"1": "a"}, True),
        ({"1": "a", 1: "a"}, {"1": "a", "2": "a"}, False),
        (1, True, False),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.31, 0.3, False),
        (float("nan"), 1.0, False),
        (float("inf"), 1e308, False),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([], None, False),
        (10**400, 1.0, False),
    ],
)
def test_results_against_json(given: Any, expected: Any, same: bool) -> None:
    assert same_value(from_text(as_text(encode(given))), expected, literal=False, tolerance=1e-9) is same


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [((1, 2), [1, 2], False), ({1, 2}, {2, 1}, True), ({1}, {1, 2}, False), (1, True, True), (1, 1.0, True),
     ({1: 2}, {1: 2}, True), ({1: 2}, {1: 3}, False), (0.1 + 0.2, 0.3, False), ([(1,)], [(1,)], True)],
)  # fmt: skip
def test_results_against_python_literals(given: Any, expected: Any, same: bool) -> None:
    assert same_value(from_text(as_text(encode(given))), expected, literal=True, tolerance=1e-9) is same


@pytest.mark.parametrize(
    ("given", "expected", "compare", "same"),
    [
        ("a \nb\n\n", "a\nb", "exact", True),
        ("a  b", "a b", "exact", False),
        ("a\r\nb", "a\nb", "exact", True),
        (" a", "a", "exact", False),
        ("a  b", "a\nb", "tokens", True),
        ("1.00 x", "1 x", "tokens", False),
        ("1.00 x", "1 x", "numbers", True),
        ("nan", "1", "numbers", False),
        ("1_0", "10", "numbers", False),
        ("", "1", "numbers", False),
    ],
)
def test_printed_text(given: str, expected: str, compare: str, same: bool) -> None:
    assert same_text(given, expected, compare=compare, tolerance=1e-9) is same
