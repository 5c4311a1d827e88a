"""The kind `code`: what is taken as cases, what a detail tells, what is an error and what is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

from grpo_core.config_reward import RewardComponent, RewardConfig, RewardLimits
from grpo_core.errors import ConfigError, DataError
from grpo_core.records import ComponentScore
from grpo_core.rewards.base import Context
from grpo_core.rewards.code import CodeScorer, open_scorer
from grpo_core.rewards.code_params import CodeParams
from grpo_core.rewards.rubric import Rubric
from tests.core.rewards.code_samples import CALLS, problem, sample
from tests.core.rewards.examples import PAGES, Example, examples, run


class Judging:
    def __init__(self) -> None:
        self._open: dict[str, CodeScorer] = {}

    def __call__(self, tests: Any, code: str, **params: Any) -> ComponentScore:
        key = repr(sorted(params.items()))
        if key not in self._open:
            deadline = params.pop("deadline", 30.0)
            limits = RewardLimits(workers=2, deadline_seconds=deadline)
            self._open[key] = open_scorer(CodeParams.model_validate(params), Context(limits))
        return self._open[key].score([sample(tests, code)], lambda: None)[0]

    def close(self) -> None:
        for scorer in self._open.values():
            scorer.close()


@pytest.fixture(scope="module")
def judged() -> Iterator[Judging]:
    judging = Judging()
    yield judging
    judging.close()


def test_the_share_of_cases_is_paid_where_asked(judged: Judging) -> None:
    half = "def f(n):\n    return n + 1 if n % 2 else n"
    score = judged(CALLS, half, pay="share")
    assert (score.value, score.passed) == (0.5, False)
    assert score.detail == "2 of 4 cases passed; case 1 of 4: f(0): gave 0"
    assert judged(CALLS, half).value == 0.0
    assert judged(CALLS, "def f(n):\n    return n + 1").detail == "4 of 4 cases passed"


def test_what_is_expected_is_told_only_where_it_is_not_hidden(judged: Judging) -> None:
    wrong = "def f(n):\n    return 'no'"
    cases = [{"call": "f", "args": [1], "returns": 77123}]
    assert judged(cases, wrong).detail == "f(1): gave 'no'"
    assert judged(cases, wrong, hidden=False).detail == "f(1): gave 'no'; expected 77123"
    program = {"program": "assert f(1) == 77123"}
    told = judged(program, wrong).detail
    assert told == "AssertionError in line 1 of the tests; last call: f(1) gave 'no'"
    assert "77123" in judged(program, wrong, hidden=False).detail
    text = [{"input": "", "output": "77123"}]
    assert judged(text, "print(5)").detail == "input '': printed '5'"
    assert judged(text, "print(5)", hidden=False).detail == "input '': printed '5'; expected '77123'"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f(n):\n    return n +", "f(0): line 2: SyntaxError: invalid syntax"),
        ("def f(n):\n    return {}[n]", "f(0): line 2: KeyError: 0"),
        ("import no_such_module", "f(0): line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def g(n):\n    return n", "f(0): NameError: there is no 'f' in the solution"),
        ("def f():\n    return 1", "f(0): TypeError: f() takes 0 positional arguments but 1 was given"),
        ("def f(n):\n    return object()", "f(0): gave an object of the class object, which is no plain value"),
        ("import sys\nsys.exit(0)", "f(0): it ended the process with status 0"),
        ("import os\nos._exit(0)", "f(0): the process ended before it returned (status 0)"),
        ("while True: pass", "f(0): took more than 1 s…"),
        ("import time\ntime.sleep(60)", "f(0): took more than 8 s by the clock"),
        (
            "def f(n):\n    return 'x' * 5_000_000",
            "f(0): gave a value of 5,000,009 bytes; at most…",
        ),
        ("x = bytearray(10 * 2**30)\ndef f(n):\n    return n + 1", "f(0): line 1: MemoryError"),
        ("def f(n):\n    return f(n)", "f(0): RecursionError"),
        ("def f(n):\n    while True:\n        yield n", "f(0): line 3: MemoryError…"),
    ],
)
def test_what_a_solution_does_wrong_is_a_zero_and_told(judged: Judging, code: str, detail: str) -> None:
    score = judged(CALLS[:1], code, case_seconds=1, memory_mb=128)
    assert (score.value, score.passed, score.error) == (0.0, False, None)
    if detail.endswith("…"):
        assert score.detail.startswith(detail[:-1]) or "processor time" in score.detail or "the clock" in score.detail
    else:
        assert score.detail == detail


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("print('y' * 10**9)", "input 'a': line 1: MemoryError"),
        ("while True: print('y' * 1000)", "input 'a': gave more than it may, up to 4,194,304 bytes"),
        ("print('yes')\nraise SystemExit(3)", "input 'a': ended with status 3"),
        ("print('yes'); 1 / 0", "input 'a': ended with status 1: line 1: ZeroDivisionError: division by zero"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "input 'a': printed what is no UTF-8"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "input 'a': was ended by signal 9"),
        ("import os\nwhile True: os.fork()", None),
        ("import threading\nwhile True: threading.Thread(target=lambda: __import__('time').sleep(9)).start()", None),
    ],
)
def test_programs_that_end_badly_earn_nothing(judged: Judging, code: str, detail: str | None) -> None:
    score = judged([{"input": "a", "output": "yes"}], code, case_seconds=1, memory_mb=256)
    assert (score.value, score.error) == (0.0, None)
    assert (detail is None and score.detail) or (score.detail == detail or "ended with status 1" in score.detail)


def test_all_cases_together_end_with_the_deadline(judged: Judging) -> None:
    code = "import time\ndef f(n):\n    if n == 2:\n        time.sleep(600)\n    return n + 1"
    score = judged(CALLS, code, pay="share", case_seconds=60, deadline=20.0)  # a case's own time is over long after
    assert (score.value, score.error) == (0.5, None)
    assert score.detail.startswith("2 of 4 cases passed; case 3 of 4: ")
    assert "time for all cases was over" in score.detail


def test_a_case_that_hangs_takes_no_other_with_it(judged: Judging) -> None:
    code = "import time\ndef f(n):\n    if n == 1:\n        time.sleep(60)\n    return n + 1"
    score = judged(CALLS, code, pay="share", case_seconds=0.3)
    assert score.value == 0.75


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ([], "holds no case"),
        ([{"input": "a"}], "case 1: 'output' is NoneType; expected text"),
        ([{"call": "f", "args": [1]}], "case 1: has neither input and output, nor call and returns, nor program"),
        ([{"call": "f", "args": 1, "returns": 2}], "case 1: 'args' must be a list"),
        ([{"call": "f()", "returns": 2}], "case 1: 'call' is 'f()'; expected the name of a function"),
        ([{"call": "f", "python": True, "args": "[1", "returns": "2"}], "case 1: 'args' is no Python literal"),
        ([3], "case 1: is int; expected an object"),
        ([{"input": "a", "output": " \n"}], "every case expects no output"),
        ([{"call": "f", "returns": None}], "every case expects None"),
        ({"inputs": ["a"], "outputs": ["b"], "fn_name": "f"}, "case 1: has neither"),
        ([{"input": "a", "output": "b"}] * 1001, "holds 1,001 cases"),
        ({"program": "assert f(1) =="}, "the tests, or what stands before them, are no Python in line 1"),
        ({"program": "import nothing_such\nassert f(1) == 2"}, "the tests import 'nothing_such', which is not there"),
        ({"program": "pass"}, "the tests never call the solution"),
        ({"program": "while True: pass"}, "the tests did not get to ask anything of the solution"),
    ],
)
def test_tests_that_cannot_be_run_are_the_problems_fault(judged: Judging, tests: Any, told: str) -> None:
    score = judged(tests, "def f(n):\n    return n + 1", case_seconds=0.5)
    assert (score.value, score.passed, score.error_class) == (None, None, "sample")
    assert score.error is not None
    assert told in score.error
    assert "problem p7" in score.error


def test_a_helper_that_neither_tests_nor_prelude_have_is_the_problems_fault() -> None:
    scorer = open_scorer(CodeParams(), Context())
    tests = {"program": "def check(candidate):\n    assert helper(candidate(1)) == 2"}
    cheat = "def f(n):\n    return n\ndef helper(x):\n    return 2"
    score = scorer.score([sample(tests, cheat, entry_point="f")], lambda: None)[0]
    assert score.error_class == "sample"
    assert "'helper', which is neither theirs nor the entry point 'f'; name the field" in (score.error or "")
    scorer.close()


def test_a_solution_cannot_replace_what_the_prelude_gives_the_tests() -> None:
    scorer = open_scorer(CodeParams(prelude="before"), Context())
    tests = {"program": "def check(candidate):\n    assert helper(candidate(1)) == 20"}
    before = "def helper(x):\n    return 10 * x\n"
    cheat, right = "def f(n):\n    return n\ndef helper(x):\n    return 20", "def f(n):\n    return 2 * n"
    samples = [sample(tests, code, entry_point="f", before=before) for code in (cheat, right)]
    assert [score.value for score in scorer.score(samples, lambda: None)] == [0.0, 1.0]
    scorer.close()


def test_a_forged_change_of_arguments_counts_only_when_nothing_is_returned(judged: Judging) -> None:
    """The solution's process may say what it likes: here that it emptied the list it was given, and returned one."""
    forged = """
import sys
frame = sys._getframe()
while 'talk' not in frame.f_locals:
    frame = frame.f_back
talk = frame.f_locals['talk']
say = talk.say
def lie(message, *rest):
    if message[0] == 'v' and message[1] == ['l', []]:
        message = ['v', ['l', []], [['l', []]]]
    say(message, *rest)
talk.say = lie
def f(data):
    return []
"""
    assert judged({"program": "data = [2, 1]\nassert f(data) == sorted(data)"}, forged).value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "['v', ['h', 1, 'object'], None]",
        "['v', ['k', 0], None]",
        "['v', ['l', 7], None]",
        "['v', ['d', [[['l', []], 1]]], None]",
        "['v', ['i', 'zz'], None]",
        "['x', 'SystemExit', [], '', '']",
        "['x', 'KeyboardInterrupt', [], '', '']",
        "['x', 'AssertionError', 5, '', '']",
        "['callback', 0, [], []]",
        "['passed', 1]",
        "['v']",
        "['v', ['unknown', 1], None]",
        "'v'",
    ],
)
def test_forged_answers_to_the_tests_pass_nothing(judged: Judging, answer: str) -> None:
    """Even where the tests swallow every error that they can."""
    forged = f"""
import sys
frame = sys._getframe()
while 'talk' not in frame.f_locals:
    frame = frame.f_back
talk = frame.f_locals['talk']
say, said = talk.say, []
def lie(message, *rest):
    said.append(message)
    say({answer} if len(said) > 2 else message, *rest)
talk.say = lie
def f(n):
    return 3
"""
    score = judged({"program": "try:\n    ok = f(1) == 77\nexcept Exception:\n    ok = False\nassert ok"}, forged)
    assert (score.value, score.error) == (0.0, None)


def test_what_a_bare_except_swallows_still_fails(judged: Judging) -> None:
    code = "class Odd:\n    pass\ndef f(n):\n    return Odd()"
    tests = {"program": "try:\n    f(1) - 1\nexcept:\n    pass"}
    assert judged(tests, code).value == 0.0


def test_a_dataset_without_the_column_is_refused_before_the_run() -> None:
    config = RewardConfig(components=(RewardComponent(name="runs", kind="code", params={"prelude": "before"}),))
    rubric = Rubric(config)
    assert rubric.needs_sandbox
    with pytest.raises(DataError, match="has no 'before', which the reward component 'runs' reads"):
        rubric.check_problems([problem(CALLS)])


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"tests": "prompt"}, "the tests need a field of their own"),
        ({"prelude": "tests"}, "names the field of the tests"),
        ({"packages": ["left-pad"]}, "'left-pad' is not one that programs may import"),
        ({"language": "rust"}, "language"),
        ({"memory_mb": 8}, "memory_mb"),
    ],
)
def test_wrong_parameters_are_told_at_once(params: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Rubric(RewardConfig(components=(RewardComponent(name="runs", kind="code", params=params),)))


def test_packages_are_there_where_named_and_not_otherwise(judged: Judging) -> None:
    code = "import numpy as np\ndef f(n):\n    return np.int64(n) + 1"
    tests = [{"call": "f", "args": [4], "returns": 5}]
    assert judged(tests, code, packages=["numpy"], memory_mb=2048).value == 1.0
    assert "ModuleNotFoundError" in judged(tests, code).detail


@pytest.mark.parametrize("example", examples(PAGES / "code.md"), ids=lambda example: example.where)
def test_what_the_page_shows_is_so(example: Example) -> None:
    run(example)
