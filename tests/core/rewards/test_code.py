"""The kind `code`: what is taken as cases, what a detail tells, what is an error and what is wrong; its boxes: none
to be had, several side by side, what a stop leaves of them, and what needs none; and what it reads and compares."""

import threading
import tracemalloc
from typing import Any

import pytest

from grpo_core.config.reward import RewardLimits
from grpo_core.data import Problem
from grpo_core.errors import DataError, RewardError
from grpo_core.rewards.base import Context, ScoreRequest
from grpo_core.rewards.code import compare
from grpo_core.rewards.code import kind as code
from grpo_core.rewards.code.box import Ended
from grpo_core.rewards.code.cases import CallCase, InputCase, ProgramCase, read_cases
from grpo_core.rewards.code.compare import same_text, same_value
from grpo_core.rewards.code.inside_values import Unsendable, as_text, decode, encode, from_text
from grpo_core.rewards.code.kind import CodeScorer, open_scorer
from grpo_core.rewards.code.params import CodeParams, extract_code
from tests.processes import DEADLINE, wait_for
from tests.tables import cases

from .scoring import CALLS, PROGRAMS, FailingSandbox, Stop, code_problem, code_sample, rubric_of, stop_after
from .scoring import code_problem as problem

RIGHT = "def f(n):\n    return n + 1"


def test_the_share_of_cases_is_paid_where_asked(judged):
    half = "def f(n):\n    return n + 1 if n % 2 else n"
    score = judged(CALLS, half, pay="share")
    assert (score.value, score.passed) == (0.5, False)
    assert all(words in score.detail for words in ("2 of 4", "case 1 of 4", "f(0)", "gave 0")), score.detail
    assert judged(CALLS, half).value == 0.0
    assert judged(CALLS, RIGHT).passed is True


@pytest.mark.parametrize(
    ("tests", "code", "given"),
    [
        ([{"call": "f", "args": [1], "returns": 77123}], "def f(n):\n    return 'no'", "f(1)"),
        ({"program": "assert f(1) == 77123"}, "def f(n):\n    return 'no'", "AssertionError in line 1"),
        ([{"input": "", "output": "77123"}], "print('no')", "input ''"),
    ],
)
def test_what_is_expected_is_told_only_where_it_is_not_hidden(judged, tests, code, given):
    hidden, shown = judged(tests, code).detail, judged(tests, code, hidden=False).detail
    assert ("'no'" in hidden, given in hidden, "77123" in hidden) == (True, True, False)
    assert ("'no'" in shown, given in shown, "77123" in shown) == (True, True, True)


@pytest.mark.parametrize(("code", "program", "cause"), cases("code_rewards/solutions", "code", "program", "cause"))
def test_what_a_solution_does_wrong_is_a_zero_and_told(judged, code, program, cause):
    tests = [{"input": "a", "output": "yes"}] if program else CALLS[:1]
    score = judged(tests, code, case_seconds=1, memory_mb=256)
    assert (score.value, score.passed, score.error) == (0.0, False, None)
    late = "processor time" in score.detail or "the clock" in score.detail  # on a busy machine
    assert (cause or "") in score.detail or late, score.detail
    assert score.detail


@pytest.mark.slow
def test_all_cases_together_end_with_the_deadline(judged):
    code = "import time\ndef f(n):\n    if n == 2:\n        time.sleep(600)\n    return n + 1"
    score = judged(CALLS, code, pay="share", case_seconds=600, deadline=12.0)  # a case's own time is over long after
    assert (score.value, score.error) == (0.5, None)
    assert "case 3 of 4" in score.detail


def test_a_case_that_hangs_takes_no_other_with_it(judged):
    code = "import time\ndef f(n):\n    if n == 1:\n        time.sleep(60)\n    return n + 1"
    score = judged(CALLS, code, pay="share", case_seconds=0.3)
    assert (score.value, "the clock" in score.detail) == (0.75, True)


@pytest.mark.parametrize(("tests", "times", "fault"), cases("code_rewards/bad_tests", "tests", "times", "fault"))
def test_tests_that_cannot_be_run_are_the_problems_fault(judged, tests, times, fault):
    score = judged(tests * times if times else tests, RIGHT, case_seconds=0.5)
    assert (score.value, score.passed, score.error_class) == (None, None, "sample")
    assert fault in (score.error or "")
    assert "problem p7" in (score.error or "")


def test_a_helper_that_neither_tests_nor_prelude_have_is_the_problems_fault(judged):
    tests = {"program": "def check(candidate):\n    assert helper(candidate(1)) == 2"}
    cheat = "def f(n):\n    return n\ndef helper(x):\n    return 2"
    score = judged(tests, cheat, meta={"entry_point": "f"})
    assert (score.error_class, "'helper'" in (score.error or "")) == ("sample", True)


@pytest.mark.parametrize(
    ("solution", "value"),
    [("def f(n):\n    return n\ndef helper(x):\n    return 20", 0.0), ("def f(n):\n    return 2 * n", 1.0)],
)
def test_a_solution_cannot_replace_what_the_prelude_gives_the_tests(judged, solution, value):
    tests = {"program": "def check(candidate):\n    assert helper(candidate(1)) == 20"}
    meta = {"entry_point": "f", "before": "def helper(x):\n    return 10 * x\n"}
    assert judged(tests, solution, meta=meta, prelude="before").value == value


# ---------------------------------------------------------------------- the solution's process may say what it likes

FORGED = PROGRAMS["forged answers"]


def test_a_forged_change_of_arguments_counts_only_when_nothing_is_returned(judged):
    """Here that it emptied the list that it was given, and returned one."""
    when = "message[0] == 'v' and message[1] == ['l', []]"
    forged = FORGED.format(forged="['v', ['l', []], [['l', []]]]", when=when, returned=[])
    assert judged({"program": "data = [2, 1]\nassert f(data) == sorted(data)"}, forged).value == 0.0


@pytest.mark.parametrize("answer", cases("code_rewards/forged_answers", "answer"))
def test_forged_answers_to_the_tests_pass_nothing(judged, answer):
    """Even where the tests swallow every error that they can."""
    forged = FORGED.format(forged=answer, when="len(sent) > 2", returned=3)
    score = judged({"program": "try:\n    ok = f(1) == 77\nexcept Exception:\n    ok = False\nassert ok"}, forged)
    assert (score.value, score.error) == (0.0, None)


def test_an_answer_is_really_forged(judged):
    """Else the tests of forged answers would say nothing."""
    forged = FORGED.format(forged="['v', 77, None]", when="len(sent) > 2", returned=3)
    assert judged({"program": "assert f(1) == 77"}, forged).value == 1.0


def test_what_a_bare_except_swallows_still_fails(judged):
    code = "class Odd:\n    pass\ndef f(n):\n    return Odd()"
    assert judged({"program": "try:\n    f(1) - 1\nexcept:\n    pass"}, code).value == 0.0


# ---------------------------------------------------------------------- before the run


def test_a_dataset_without_the_column_is_refused_before_the_run():
    rubric = rubric_of({"kind": "code", "params": {"prelude": "before"}})
    assert rubric.needs_sandbox
    with pytest.raises(DataError, match="'before'"):
        rubric.check_problems([code_problem(CALLS)])


def test_packages_are_there_where_named_and_not_otherwise(judged):
    code = "import numpy as np\ndef f(n):\n    return np.int64(n) + 1"
    tests = [{"call": "f", "args": [4], "returns": 5}]
    assert judged(tests, code, packages=["numpy"], memory_mb=2048).value == 1.0
    assert "ModuleNotFoundError" in judged(tests, code).detail


# ---------------------------------------------------------------------- honest solutions


@pytest.mark.parametrize(
    ("tests", "program", "made", "right", "wrong", "params", "meta", "prompt"),
    cases("code_rewards/problems", "tests", "program", "made", "right", "wrong", "params", "meta", "prompt"),
)
def test_right_is_paid_and_wrong_is_not(tests, program, made, right, wrong, params, meta, prompt, code_scorer):
    if program or made:
        tests = {"program": program} if program else eval(made)
    problem = Problem("p", prompt or "write a program", "", {"tests": tests, **(meta or {})})
    text = "{}" if "extract" in (params or {}) else "I think this is it:\n\n```python\n{}\n```\n\nHope that helps."
    samples = [ScoreRequest(problem, text.replace("{}", code)) for code in (right, wrong)]
    paid, unpaid = code_scorer(**(params or {})).score(samples, lambda: None)
    assert (paid.value, paid.error) == (1.0, None), paid
    assert (unpaid.value, unpaid.passed, unpaid.error) == (0.0, False, None), unpaid
    assert unpaid.detail


# ---------------------------------------------------------------------- boxes: none to be had, several, after a stop


def test_trouble_of_the_sandbox_is_never_a_zero():
    scorer = CodeScorer(CodeParams(), Context(RewardLimits(workers=1)), FailingSandbox(2))
    scores = scorer.score([code_sample(CALLS, RIGHT)] * 3, lambda: None)
    assert [(score.value, score.error_class) for score in scores] == [(None, "infra"), (None, "infra"), (1.0, None)]
    assert scorer.facts()["infra_errors"] == 2
    assert scorer.facts()["solutions"] == 3
    assert scorer.facts()["sandbox"]["level"] in ("bubblewrap", "landlock")
    scorer.close()


def test_samples_run_side_by_side_and_keep_their_order(monkeypatch):
    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=2)))
    together, score_one, threads = threading.Barrier(2, timeout=DEADLINE), scorer._score_sample, set[int]()

    def both(given):
        threads.add(threading.get_ident())
        together.wait()  # passed only while another runs too
        return score_one(given)

    monkeypatch.setattr(scorer, "_score_sample", both)
    codes = [f"def f(n):\n    return n + {1 + n % 2}" for n in range(6)]
    scores = scorer.score([code_sample(CALLS, code) for code in codes], lambda: None)
    assert [score.value for score in scores] == [1.0, 0.0] * 3
    assert len(threads) == 2
    scorer.close()


def test_stopping_ends_what_runs_and_leaves_the_scorer_usable():
    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=2)))
    endless = code_sample(CALLS, "import time\ntime.sleep(1000)")
    with pytest.raises(Stop):
        scorer.score([endless] * 4, stop_after(3))
    assert not scorer._open
    assert scorer.score([code_sample(CALLS, RIGHT)], lambda: None)[0].value == 1.0
    scorer.close()


def test_nothing_runs_in_a_box_that_opens_while_scoring_is_stopped(monkeypatch):
    scorer = open_scorer(CodeParams(), Context(RewardLimits(workers=1, deadline_seconds=5)))
    opening, opened, ran = threading.Event(), code.CodeBox.__init__, list[str]()

    def late(box, *words):
        opening.set()
        wait_for(lambda: scorer._stopping, "the stop")
        opened(box, *words)

    def order(box, **words):
        ran.append(words["source"])
        return Ended("box")

    def check():
        if opening.is_set():
            raise Stop

    monkeypatch.setattr(code.CodeBox, "__init__", late)
    monkeypatch.setattr(code.CodeBox, "order", order)
    with pytest.raises(Stop):
        scorer.score([code_sample(CALLS, "import time\ntime.sleep(1000)")], check)
    scorer.close()
    assert ran == []


def test_completions_without_a_program_earn_nothing_and_start_nothing():
    scorer = CodeScorer(CodeParams(), Context(), FailingSandbox(99))
    texts = ["f = 1", "```python\nx = '\ud800'\n```", "```python\n" + "x = 1\n" * 60_000 + "```"]
    scores = scorer.score([ScoreRequest(code_problem(CALLS), text) for text in texts], lambda: None)
    assert [(score.value, score.error) for score in scores] == [(0.0, None)] * 3
    assert all(score.detail for score in scores)
    scorer.close()


# ---------------------------------------------------------------------- what is read and compared


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
    handed = "class A:\n    def __call__(self):\n        pass\nassert f(A(), [x for x in g(map(int, 'ab'))]) == 1"
    assert read_cases(problem(handed, entry_point="f")).cases == (ProgramCase(handed),)
    with pytest.raises(RewardError, match="cannot be sent"):
        read_cases(problem("assert f(iter([1])) == 1", entry_point="f"))


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


# Outside of the box nothing ends what a solution made to take hours.


@pytest.mark.parametrize("literal", [True, False])
@pytest.mark.parametrize("text", ["1e9999999", "-1e-9999999"])
def test_a_decimal_of_a_large_exponent_is_not_written_out(text, literal):
    tracemalloc.start()
    try:
        assert not same_value(["D", text], 1.5, literal=literal, tolerance=1e-9)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_fraction_whose_common_divisor_takes_minutes_is_no_value():
    parts = [["i", f"{digit}" * 20_000] for digit in (3, 7)]
    with pytest.raises(ValueError, match="too many digits"):
        decode(["F", *parts])
    assert not same_value(["F", *parts], 1.5, literal=False, tolerance=1e-9)


@pytest.mark.parametrize(
    ("wire", "expected", "literal"),
    [
        (["s", [["z", [1, 2]]]], {1}, True),
        (["s", [["t", [1, ["z", [1, 2, 3]]]]]], {(1, frozenset({2, 3}))}, True),
        (["d", [[["z", [1, 2]], 1]]], {frozenset({2}): 1}, True),
        (["d", [[["z", [1]], 1]]], {"1": 1}, False),
    ],
    ids=str,
)
def test_no_set_is_made_that_is_larger_than_those_expected(wire, expected, literal, monkeypatch):
    """Its members may all have one hash, and to make it then takes time that is quadratic in them."""
    monkeypatch.setattr(compare, "decode", lambda wire: pytest.fail(f"{wire} is made"))
    assert not same_value(wire, expected, literal=literal, tolerance=1e-9)


@pytest.mark.parametrize(
    ("given", "expected", "how", "same"), cases("code_rewards/compare", "given", "expected", "how", "same")
)
def test_compares(given, expected, how, same):
    if how in ("json", "python"):
        value = from_text(as_text(encode(eval(given))))
        assert same_value(value, eval(expected), literal=how == "python", tolerance=1e-9) is same
    else:
        assert same_text(given, expected, compare=how, tolerance=1e-9) is same
