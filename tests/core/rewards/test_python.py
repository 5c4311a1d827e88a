"""A person's own verifier, in the real sandbox: what it returns is checked, what it does wrong is told by class, and
nothing that it does reaches another sample's score or the machine."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import ConfigError, DataError, RewardError, SandboxError
from grpo_core.records import ComponentScore
from grpo_core.rewards import Rubric, Runner, Unscored, session
from grpo_core.rewards.session import shared_sandbox
from tests.core.rewards.examples import PAGES, Example, examples, run

Make = Callable[..., Runner]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Runner] = []

    def runner(source: str, *, on_error: str = "mask", limits: dict[str, Any] | None = None, **params: Any) -> Runner:
        component = {"name": "mine", "kind": "python", "params": {"source": source, **params}}
        config = {"components": [component], "on_error": on_error, "limits": limits or {"workers": 2}}
        made.append(Runner(Rubric(RewardConfig.model_validate(config))))
        return made[-1]

    yield runner
    for one in made:
        one.close()


def samples(*completions: str, **meta: Any) -> list[Unscored]:
    return [Unscored(Problem(f"p{n}", "q", "7", meta), one, len(one)) for n, one in enumerate(completions)]


def told(runner: Runner, *completions: str, **meta: Any) -> list[ComponentScore]:
    return [scored.components["mine"] for scored in runner.score(samples(*completions, **meta))]


def returning(make: Make, expression: str, **params: Any) -> ComponentScore:
    (found,) = told(
        make(f"import math, fractions, decimal\ndef verify(sample):\n    return {expression}", **params), "abc"
    )
    return found


# ---------------------------------------------------------------------- what it is given, what it may return


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


# ---------------------------------------------------------------------- what takes too much


LOOPS = "def verify(sample):\n    while sample.completion == 'loop':\n        pass\n    return 1\n"


def test_an_endless_loop_is_killed_at_its_deadline_and_the_next_sample_is_scored(make: Make) -> None:
    runner = make(LOOPS, limits={"workers": 2, "deadline_seconds": 1})
    found = told(runner, "a", "loop", "b", "loop", "c")
    assert [one.error_class for one in found] == [None, "timeout", None, "timeout", None]
    assert found[1].error == "Timeout: one sample took over 1 s and was killed"
    assert found[1].seconds >= 1
    assert [one.value for one in found] == [1, None, 1, None, 1]


def test_the_shorter_of_both_deadlines_counts(make: Make) -> None:
    (found,) = told(make(LOOPS, call_seconds=0.5, limits={"deadline_seconds": 300}), "loop")
    assert found.error == "Timeout: one sample took over 0.5 s and was killed"
    (found,) = told(make(LOOPS, call_seconds=300, limits={"deadline_seconds": 0.5}), "loop")
    assert found.error == "Timeout: one sample took over 0.5 s and was killed"


ONE_BAD = """
import {modules}
def verify(sample):
    if sample.completion == "bad":
        {bad}
    return 1
"""


def one_bad(make: Make, bad: str, modules: str = "math", **params: Any) -> ComponentScore:
    """The score of a bad sample between good ones, which must be scored."""
    # `__import__` is no import that is checked; what it gives is bounded by the sandbox.
    runner = make(ONE_BAD.format(bad=bad, modules=modules), limits={"workers": 1, "deadline_seconds": 30}, **params)
    first, found, last = told(runner, "good", "bad", "good")
    assert (first.value, last.value) == (1.0, 1.0), (first, last)
    assert found.value is None
    return found


@pytest.mark.parametrize(
    "bad",
    [
        "bytearray(10 * 2**30)",
        "kept = [bytes(2**20) for _ in range(10 * 2**10)]",
        "return len('x' * (10 * 2**30))",
        "'a' * (2**30)",
        "[0] * (10 * 2**30)",
    ],
)
def test_ten_gigabytes_of_memory(make: Make, bad: str) -> None:
    assert one_bad(make, bad).error_class == "memory"


@pytest.mark.parametrize(
    "bad",
    [
        "for _ in range(1024): print('x' * 2**20)",
        "for _ in range(1024): __import__('os').write(1, b'x' * 2**20)",
        "for _ in range(1024): __import__('os').write(2, b'x' * 2**20)",
        "__import__('sys').__stdout__.write('x' * 2**25); __import__('sys').__stdout__.flush()",
        "exec('try:\\n  while True: print(1e9)\\nexcept BaseException: pass')",
    ],
)
def test_a_gigabyte_of_output(make: Make, bad: str) -> None:
    assert one_bad(make, bad).error_class == "output"


@pytest.mark.parametrize(
    "bad",
    [
        "while True: __import__('os').fork()",
        "exec('import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass')",
        "while True: __import__('threading').Thread(target=__import__('time').sleep, args=(100,)).start()",
    ],
)
def test_a_fork_bomb_is_harmless_and_told(make: Make, bad: str) -> None:
    before = len(psutil.pids())
    found = one_bad(make, bad, call_seconds=5)
    if found.error_class != "timeout":  # one that hides what it is refused loops until its time is over
        assert found.error_class == "verifier"
        assert (found.error or "").endswith("(the sandbox lets a verifier have 16 processes and threads)")
    assert len(psutil.pids()) < before + 40


@pytest.mark.parametrize(
    ("bad", "kind", "error"),
    [
        ("__import__('os')._exit(0)", "verifier", "ended its own process with status 0"),
        ("__import__('os')._exit(3)", "verifier", "ended its own process with status 3"),
        ("__import__('os').kill(__import__('os').getpid(), 11)", "verifier", "ended its own process by signal 11"),
        ("__import__('ctypes').string_at(0)", "verifier", "ended its own process by signal 11"),
    ],
)
def test_a_verifier_that_ends_its_process(make: Make, bad: str, kind: str, error: str) -> None:
    found = one_bad(make, bad)
    assert (found.error_class, (found.error or "").splitlines()[0]) == (kind, error)


@pytest.mark.parametrize(
    "bad",
    [
        "open('/etc/passwd').read()",
        "open('/box/x', 'w')",
        "__import__('socket').create_connection(('127.0.0.1', 80), 1)",
        "__import__('subprocess').run(['/bin/ls'], check=True)",
        "import numpy",
        "import grpo_core",
    ],
)
def test_what_the_box_does_not_have(make: Make, bad: str, tmp_path: Path) -> None:
    assert one_bad(make, f"exec({bad!r})").error_class == "verifier"


def test_what_goes_on_after_an_answer_is_ended_with_its_box(make: Make) -> None:
    source = """
import time
os, threading = __import__("os"), __import__("threading")
box = os.urandom(8).hex()
def verify(sample):
    if sample.completion == "thread":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if sample.completion == "child" and os.fork() == 0:
        time.sleep(1000)
    return {"value": 1, "detail": box}
"""
    found = told(make(source, limits={"workers": 1}), "plain", "thread", "plain", "child", "plain")
    boxes = [one.detail for one in found]
    assert boxes[0] == boxes[1] != boxes[2]
    assert boxes[2] == boxes[3] != boxes[4]


def test_memory_that_earlier_samples_took_is_not_held_against_a_later_one(make: Make) -> None:
    """Each sample keeps 100 MiB, the box may have 512: every so often a fresh one is needed, and no sample suffers."""
    source = "kept = []\ndef verify(sample):\n    kept.append(bytearray(100 * 2**20))\n    return 1"
    found = told(make(source, limits={"workers": 1}), *"abcdefghijkl")
    assert [one.error for one in found] == [None] * 12
    assert sum(one.tries > 1 for one in found) >= 2


def test_a_chatty_verifier_is_not_ended_for_what_it_wrote_over_many_samples(make: Make) -> None:
    source = "os = __import__('os')\ndef verify(sample):\n    os.write(1, b'x' * 50_000)\n    return 1"
    found = told(make(source, limits={"workers": 1}), *["a"] * 120)  # 6 MB, and a box is killed after 4
    assert [one.error for one in found] == [None] * 120


# ---------------------------------------------------------------------- before the run, beside it, after it


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0\ndef verify(sample):\n    return 1", 'File "verifier.py", line 1, in <module>\n    1 / 0'),
        ("raise SystemExit\ndef verify(sample):\n    return 1", "cannot be loaded: SystemExit"),
        ("verify = 3", "the source defines no function verify"),
        ("x = bytearray(10 * 2**30)\ndef verify(sample):\n    return 1", "MemoryError"),
        ("import regex\ndef verify(sample):\n    return 1", "ModuleNotFoundError: No module named 'regex'"),
    ],
)
def test_a_source_that_cannot_be_loaded_is_told_before_anything_is_scored(make: Make, source: str, error: str) -> None:
    if "regex" in source:  # what the check would tell already
        source = source.replace("import regex", "regex = __import__('regex')")
    with pytest.raises(RewardError) as refused:
        make(source)
    assert error in str(refused.value)


def test_a_source_that_loads_for_ever_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.rewards.session_slot.LOAD_SECONDS", 1.0)
    with pytest.raises(RewardError, match="cannot be loaded: Timeout: loading took over 1 s and was killed"):
        make("while True:\n    pass\ndef verify(sample):\n    return 1", limits={"deadline_seconds": 1})


@pytest.mark.parametrize(
    ("package", "expression"),
    [
        ("numpy", "numpy.float32(0.5) if numpy.bool_(True) else 0"),
        ("sympy", "bool(sympy.simplify('x*(x+1) - x**2 - x') == 0) / 2"),
        ("math-verify", "math_verify.verify(math_verify.parse('$1/2$'), math_verify.parse('$0.5$')) / 2"),
        ("regex", "len(regex.findall(r'\\p{L}', 'é')) / 2"),
    ],
)
def test_a_package_can_be_used_where_it_is_asked_for(make: Make, package: str, expression: str) -> None:
    module = package.replace("-", "_")
    source = f"import {module}\ndef verify(sample):\n    return {expression}"
    runner = make(source, packages=[package], memory_mb=2048, limits={"workers": 1})
    (found,) = told(runner, "x")
    assert (found.value, found.error) == (0.5, None)
    assert runner.facts()["mine"]["packages"].keys() == {package}


def test_a_package_that_is_not_installed_is_told_with_the_fix(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(session, "version", missing)
    with pytest.raises(ConfigError, match="asks for the package scipy, which is not installed on this machine: pip"):
        make("def verify(sample):\n    return 1", packages=["scipy"])


def test_the_same_sample_gets_the_same_random_numbers(make: Make) -> None:
    source = "import random\ndef verify(sample):\n    return random.random()"
    first, again = told(make(source), "a", "b", "c"), told(make(source), "c", "a", "b", "a")
    assert len({one.value for one in first}) == 3
    assert [one.value for one in again] == [first[place].value for place in (2, 0, 1, 0)]


def test_sets_of_text_have_the_same_order_in_every_box(make: Make) -> None:
    words = "words = set('alpha beta gamma delta epsilon zeta'.split())"
    source = f"{words}\ndef verify(sample):\n    return {{'value': 1, 'detail': ' '.join(words)}}"
    assert len({told(make(source), "a")[0].detail for _ in range(3)}) == 1


def test_order_is_kept_with_several_boxes(make: Make) -> None:
    source = "import time\ndef verify(sample):\n    x = float(sample.completion)\n    time.sleep(x)\n    return x"
    asked = [str(0.02 * (n * 7 % 5)) for n in range(40)]
    found = told(make(source, limits={"workers": 4}), *asked)
    assert [one.value for one in found] == [float(one) for one in asked]


def test_a_wish_to_stop_is_met_while_a_verifier_loops(make: Make) -> None:
    runner = make(LOOPS, limits={"workers": 2, "deadline_seconds": 3600})
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() > began + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.score(samples("loop", "loop", "a"), check=check)
    assert told(runner, "a")[0].value == 1.0


def test_closing_ends_every_box(make: Make) -> None:
    shared_sandbox()  # its keeper lives on

    def processes() -> int:
        return len(psutil.Process().children(recursive=True))

    before = processes()
    runner = make("def verify(sample):\n    return 1")
    told(runner, *"abcd")
    assert processes() > before
    runner.close()
    runner.close()
    assert processes() == before


def test_facts_name_the_source_the_sandbox_and_the_limits(make: Make) -> None:
    source = "def verify(sample):\n    return 1"
    facts = make(source, memory_mb=256, call_seconds=5).facts()["mine"]
    assert facts == {
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        "packages": {},
        "sandbox": shared_sandbox().report.words,
        "memory_mb": 256,
        "call_seconds": 5.0,
        "workers": 2,
    }
    assert json.loads(json.dumps(facts)) == facts


# ---------------------------------------------------------------------- trouble of the machine


def test_without_a_sandbox_nothing_is_scored(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SandboxError("no sandbox works here: install bubblewrap")

    monkeypatch.setattr(session, "shared_sandbox", none)
    with pytest.raises(SandboxError, match="install bubblewrap"):
        make("def verify(sample):\n    return 1")


class Failing:
    """The real sandbox, whose next boxes cannot be had."""

    def __init__(self, times: int) -> None:
        self._real, self.times = shared_sandbox(), times
        self.report = self._real.report

    def open(self, *words: Any, **more: Any) -> Any:
        if self.times > 0:
            self.times -= 1
            raise SandboxError("a box could not be started: Resource temporarily unavailable")
        return self._real.open(*words, **more)


@pytest.mark.parametrize(("fails", "tries", "error"), [(1, 2, None), (2, 3, None), (99, 3, "infra")])
@pytest.mark.parametrize("on_error", ["mask", "zero"])
def test_trouble_of_the_sandbox_is_tried_again_then_masked_and_never_paid_0(
    make: Make, monkeypatch: pytest.MonkeyPatch, fails: int, tries: int, error: str | None, on_error: str
) -> None:
    failing = Failing(0)
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    runner = make(LOOPS, limits={"workers": 1, "deadline_seconds": 0.5}, on_error=on_error)
    assert told(runner, "loop")[0].error_class == "timeout"  # its box is gone
    failing.times = fails
    scored = runner.one(Problem("p", "q", "7"), "a")
    assert (scored.reward, scored.components["mine"].error_class) == (1.0 if error is None else None, error)
    assert scored.components["mine"].tries == tries


def test_a_run_whose_every_box_fails_ends_with_the_reason(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(99)
    monkeypatch.setattr(session, "shared_sandbox", lambda: failing)
    with pytest.raises(SandboxError, match="Resource temporarily unavailable"):
        make("def verify(sample):\n    return 1")


def test_no_reply_of_the_box_is_believed(make: Make) -> None:
    """Source of a person can reach the channel of its own box: what comes is checked like anything from outside."""
    runner = make("def verify(sample):\n    return 1")
    score = runner._scorers["mine"]._score  # type: ignore[attr-defined]
    (sample,) = samples("abc")
    for reply in (
        {"value": math.inf},
        {"value": "x"},
        {},
        {"value": 1.0, "steps": [{"end": 9, "value": 1.0}]},
        {"value": 1.0, "steps": [{"end": 0, "value": 1.0}]},
        {"value": 1.0, "passed": [1]},
    ):
        assert score(reply, sample).error_class == "value", reply


def test_a_forged_frame_ends_the_box_and_is_no_score(make: Make) -> None:
    bad = """
import os
frame = bytes(32) + (13).to_bytes(4, "big") + b'{"value": 1}x'
for descriptor in range(3, 64):
    try:
        os.write(descriptor, frame)
    except OSError:
        pass
"""
    assert one_bad(make, f"exec({bad!r})").error_class == "output"


PAGE = PAGES / "python.md"


@pytest.mark.parametrize("example", examples(PAGE), ids=lambda example: example.where)
def test_what_the_page_shows_is_so(example: Example) -> None:
    run(example)


def leaves() -> list[psutil.Process]:
    """What runs in the boxes of this process."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if not one.children()]


@pytest.mark.parametrize("whom", ["the program in a box", "all that holds boxes"])
def test_what_is_killed_from_outside_is_tried_again_and_no_sample_suffers(
    make: Make, monkeypatch: pytest.MonkeyPatch, whom: str
) -> None:
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    runner = make("import time\ndef verify(sample):\n    time.sleep(0.2)\n    return 1", limits={"workers": 1})
    killed: list[int] = []
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() > began + 0.5 and not killed:
            keepers = psutil.Process().children()
            for one in leaves() if whom == "the program in a box" else keepers:
                killed.append(one.pid)
                with suppress(psutil.NoSuchProcess):  # one that went with the one before
                    one.kill()

    scored = [one.components["mine"] for one in runner.score(samples(*"abcdefgh"), check=check)]
    assert killed
    assert [one.value for one in scored] == [1.0] * 8
    assert [one.error for one in scored] == [None] * 8
    assert max(one.tries for one in scored) == 2


def test_a_child_that_answers_too_is_not_heard(make: Make) -> None:
    """Both go on to the end of `verify`; the child has no channel to tell its value over."""
    source = "os = __import__('os')\ndef verify(sample):\n    return 1 if os.fork() else 5"
    found = told(make(source, limits={"workers": 1}), *"abcdef")
    assert [(one.value, one.error) for one in found] == [(1.0, None)] * 6
