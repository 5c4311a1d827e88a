"""A person's own verifier, in the real sandbox: what it is given, and what becomes of what it returns and raises."""

import json

import pytest

from grpo_core.data import Problem
from grpo_core.errors import DataError, RewardError
from tests.core.rewards.own_verifier import ONE, SINGLE, returning, scores
from tests.core.rewards.programs import PROGRAMS
from tests.tables import cases


def test_it_is_given_text_and_the_declared_fields(make):
    source = PROGRAMS["fields"]
    (score,) = scores(make(source, columns=["unit"]), "é \x00 \ud800", unit={"of": ["m", 1.5]}, secret="s")
    assert score.error is None, score


def test_a_problem_without_a_declared_field_is_refused_before_the_run(make):
    with pytest.raises(DataError, match="p0 has no 'unit'"):
        make(ONE, columns=["unit", "level"]).rubric.check_problems([Problem("p0", "q", "7", {"level": 1})])


@pytest.mark.parametrize(
    ("expression", "value", "passed", "fault"), cases("python/returned", "expression", "value", "passed", "fault")
)
def test_what_it_returns(make, expression, value, passed, fault):
    score = returning(make, expression)
    assert (score.value, score.passed, score.error_class) == (value, passed, "value" if fault else None)
    assert (fault or "") in (score.error or "")


def test_where_a_sample_passes_can_be_chosen(make):
    assert returning(make, "0.25", pass_at=0.25).passed is True


def test_detail_and_steps_are_kept(make):
    score = returning(make, "{'value': 1, 'detail': 'x' * 5000, 'steps': [{'end': 3, 'value': 0.5}]}")
    assert score.detail == "x" * 2000
    assert [(step.end, step.value) for step in score.steps or ()] == [(3, 0.5)]
    assert returning(make, "{'value': 1, 'detail': '\\ud800\\x00'}").detail == "\ufffd\ufffd"


@pytest.mark.parametrize(("on_error", "reward"), [("mask", None), ("zero", 0.0), ("fail", "ends")])
def test_the_error_policy_decides_what_a_sample_gets(make, on_error, reward):
    runner = make("def verify(sample):\n    return 1 / 0", on_error=on_error)
    if reward == "ends":
        with pytest.raises(RewardError, match=r"'mine' failed on problem p: ZeroDivisionError"):
            runner.one(Problem("p", "q", "7"), "x")
    else:
        assert runner.one(Problem("p", "q", "7"), "x").reward == reward


def test_the_traceback_has_the_persons_lines_alone(make):
    source = (
        "import json\ndef inner(text):\n    return json.loads(text)\n\ndef verify(sample):\n    return inner('{')\n"
    )
    (score,) = scores(make(source), "x")
    assert score.error_class == "verifier"
    assert (score.error or "").startswith("JSONDecodeError")
    lines = [line for line in score.traceback.splitlines() if line.startswith("  File")]
    assert lines == ['  File "verifier.py", line 6, in verify', '  File "verifier.py", line 3, in inner']
    assert score.traceback.endswith(score.error or "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("return verify(sample)", "RecursionError: maximum recursion depth exceeded"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "Odd: (an exception that cannot"),
        ("raise ValueError('\\ud800' * 10000)", "ValueError: " + "\ufffd" * 1988),
        ("return sample.missing", "AttributeError: 'Sample'"),
    ],
)
def test_whatever_is_raised_is_an_error_of_the_sample(make, body, error):
    (score,) = scores(make(f"def verify(sample):\n    {body}\n"), "x")
    assert (score.error_class, (score.error or "")[: len(error)]) == ("verifier", error)
    assert len(score.error or "") <= 2000
    assert "verifier.py" in score.traceback
    assert len(score.traceback) <= 4096
    json.dumps(score.model_dump(mode="json")).encode()


def test_what_is_printed_stays_with_its_sample(make):
    source = PROGRAMS["prints"]
    found = scores(make(source, limits=SINGLE), "a", "long", "bad", "b")
    begin = [f"saw {completion}\né\ufffd\n" for completion in ("a", "long", "bad", "b")]
    assert [score.printed[:12] for score in found] == [text[:12] for text in begin]
    assert [len(score.printed) for score in found] == [9, 4096, 11, 9]
    assert [score.error for score in found] == [None, None, "ValueError: bad", None]
