"""A person's own verifier, in the real sandbox: what it is given, and how what it
returns, raises and prints is told."""

import json

import pytest

from grpo_core.data import Problem
from grpo_core.errors import DataError, RewardError
from tests.core.rewards.own_verifier import Make, returning, told


def test_it_is_given_text_and_the_declared_fields(make: Make) -> None:
    source = """
def verify(sample):
    assert (sample.prompt, sample.answer, sample.completion, sample.tokens) == ("q", "7", "é \\x00 \\ud800", 5), sample
    assert sample.meta == {"unit": {"of": ["m", 1.5]}}, sample.meta
    return True
"""
    (found,) = told(make(source, columns=["unit"]), "é \x00 \ud800", unit={"of": ["m", 1.5]}, secret="s")
    assert found.error is None, found


def test_a_problem_without_a_declared_field_is_refused_before_the_run(make: Make) -> None:
    runner = make("def verify(sample):\n    return 1", columns=["unit", "level"])
    with pytest.raises(DataError, match="problem p0 has no 'unit', which the reward component 'mine' reads"):
        runner.rubric.check_problems([Problem("p0", "q", "7", {"level": 1})])


@pytest.mark.parametrize(
    ("expression", "value", "passed"),
    [
        ("1", 1.0, True),
        ("0.25", 0.25, False),
        ("-3", -3.0, False),
        ("True", 1.0, True),
        ("False", 0.0, False),
        ("2.5", 2.5, True),
        ("fractions.Fraction(1, 4)", 0.25, False),
        ("{'value': 0.5}", 0.5, False),
        ("{'value': 0.5, 'passed': True, 'detail': 'half'}", 0.5, True),
        ("{'value': True, 'detail': None}", 1.0, True),
        ("{'value': 1, 'passed': False}", 1.0, False),
        ("{'steps': [{'end': 1, 'value': 1}, {'end': 3, 'value': 0}]}", 0.5, False),
    ],
)
def test_values_that_are_taken(make: Make, expression: str, value: float, passed: bool) -> None:
    found = returning(make, expression)
    assert (found.value, found.passed, found.error) == (value, passed, None)


def test_where_a_sample_passes_can_be_chosen(make: Make) -> None:
    assert returning(make, "0.25", pass_at=0.25).passed is True


def test_detail_and_steps_are_kept(make: Make) -> None:
    found = returning(make, "{'value': 1, 'detail': 'x' * 5000, 'steps': [{'end': 3, 'value': 0.5}]}")
    assert found.detail == "x" * 2000
    assert [(step.end, step.value) for step in found.steps or ()] == [(3, 0.5)]
    assert returning(make, "{'value': 1, 'detail': '\\ud800\\x00'}").detail == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("None", "verify returned None; it must be a number, True or False"),
        ("'1.0'", "verify returned a str ('1.0'); it must be a number, True or False"),
        ("[1]", "verify returned a list ([1]); it must be a number, True or False"),
        ("float('nan')", "verify returned nan; it must be a finite number"),
        ("-math.inf", "verify returned -inf; it must be a finite number"),
        ("10 ** 400", "verify returned a number that is too large"),
        ("1e308", "python gave 1e+308, which is not a number up to 1e+09"),
        ("2e9", "python gave 2000000000.0, which is not a number up to 1e+09"),
        ("decimal.Decimal('1')", "verify returned a Decimal (Decimal('1')); it must be a number, True or False"),
        ("1 + 1j", "verify returned a complex ((1+1j)); it must be a number, True or False"),
        ("{}", "verify returned a dict without 'value'"),
        ("{'score': 1}", "verify returned a dict with score; it may have detail, passed, steps, value"),
        ("{'value': None}", "verify returned a dict without 'value'"),
        ("{'value': 'x'}", "verify returned a dict whose 'value' is a str ('x'); it must be a number, True or False"),
        ("{'value': 1, 'passed': 1}", "verify returned a dict whose 'passed' is an int (1); it must be True or False"),
        ("{'value': 1, 'detail': 1}", "verify returned a dict whose 'detail' is an int (1); it must be text"),
        ("{'value': 1, 'steps': 1}", "verify returned a dict whose 'steps' is an int (1); it must be a list"),
        (
            "{'value': 1, 'steps': [{'end': 4, 'value': 1}]}",
            "the 'end' of step 0 is an int (4); it must be a place from 1 to 3",
        ),
        (
            "{'value': 1, 'steps': [{'end': 1, 'value': float('inf')}]}",
            "the 'value' of step 0 is inf; it must be a finite number",
        ),
        ("{'value': 1, 'steps': [1]}", "step 0 is an int (1); it must be a dict with 'end' and 'value'"),
    ],
)
def test_values_that_are_no_reward_are_errors_of_class_value(make: Make, expression: str, error: str) -> None:
    found = returning(make, expression)
    assert (found.value, found.passed, found.error_class, found.error) == (None, None, "value", error)


@pytest.mark.parametrize(("on_error", "reward"), [("mask", None), ("zero", 0.0)])
def test_the_error_policy_decides_what_a_sample_gets(make: Make, on_error: str, reward: float | None) -> None:
    runner = make("def verify(sample):\n    return None", on_error=on_error)
    assert runner.one(Problem("p", "q", "7"), "x").reward == reward


def test_with_fail_an_error_ends_the_scoring(make: Make) -> None:
    runner = make("def verify(sample):\n    return 1 / 0", on_error="fail")
    with pytest.raises(RewardError, match="component 'mine' failed on problem p: ZeroDivisionError: division by zero"):
        runner.one(Problem("p", "q", "7"), "x")


# ---------------------------------------------------------------------- what it raises and prints


def test_the_traceback_has_the_persons_lines_alone(make: Make) -> None:
    source = (
        "import json\ndef inner(text):\n    return json.loads(text)\n\ndef verify(sample):\n    return inner('{')\n"
    )
    (found,) = told(make(source), "x")
    assert found.error_class == "verifier"
    assert found.error is not None
    assert found.error.startswith("JSONDecodeError: Expecting property name")
    assert found.traceback == (
        "  File \"verifier.py\", line 6, in verify\n    return inner('{')\n           ^^^^^^^^^^\n"
        '  File "verifier.py", line 3, in inner\n    return json.loads(text)\n           ^^^^^^^^^^^^^^^^\n'
        + found.error
    )


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("return verify(sample)", "RecursionError: maximum recursion depth exceeded"),
        (
            "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
            "Odd: (an exception that cannot be written)",
        ),
        ("raise ValueError('\\ud800' * 10000)", "ValueError: " + "\ufffd" * 1988),
        ("return sample.missing", "AttributeError: 'Sample' object has no attribute 'missing'"),
    ],
)
def test_whatever_is_raised_is_an_error_of_the_sample(make: Make, body: str, error: str) -> None:
    (found,) = told(make(f"def verify(sample):\n    {body}\n"), "x")
    assert (found.error_class, found.error) == ("verifier", error)
    assert "verifier.py" in found.traceback
    assert len(found.traceback) <= 4096
    json.dumps(found.model_dump(mode="json")).encode()


def test_what_is_printed_stays_with_its_sample(make: Make) -> None:
    source = """
import sys
print("while loading")
def verify(sample):
    print("saw", sample.completion)
    print("é\\ud800", file=sys.stderr)
    if sample.completion == "long":
        print("x" * 10_000_000)
    if sample.completion == "bad":
        raise ValueError("bad")
    return 1
"""
    found = told(make(source, limits={"workers": 1}), "a", "long", "bad", "b")
    assert [one.printed[:12] for one in found] == [
        "saw a\né\ufffd\n",
        "saw long\né\ufffd\n",
        "saw bad\né\ufffd\n",
        "saw b\né\ufffd\n",
    ]
    assert [len(one.printed) for one in found] == [9, 4096, 11, 9]
    assert [one.error for one in found] == [None, None, "ValueError: bad", None]
