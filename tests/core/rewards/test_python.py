"""A person's own verifier, in the real sandbox: what it is given, what becomes of what it returns and raises; loading,
packages, order, stopping and closing. Its source is read first: each fault is told with its line and a caret."""

import hashlib
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.errors import ConfigError, DataError, RewardError
from grpo_core.rewards.python import session
from grpo_core.rewards.python.python_check import MOST_BYTES, PACKAGES, check_source
from grpo_core.rewards.python.session import shared_sandbox
from tests.processes import below
from tests.tables import cases

from .scoring import LOOPS, ONE, PROGRAMS, SINGLE, Stop, returning, rubric_of, samples, scores, stop_after


def test_it_is_given_text_and_the_declared_fields(make):
    (score,) = scores(make(PROGRAMS["fields"], columns=["unit"]), "é \x00 \ud800", unit={"of": ["m", 1.5]}, secret="s")
    assert score.error is None, score
    with pytest.raises(DataError, match="p0 has no 'unit'"):
        make(ONE, columns=["unit", "level"]).rubric.check_problems([Problem("p0", "q", "7", {"level": 1})])


@pytest.mark.parametrize(
    ("expression", "value", "passed", "fault"), cases("python/returned", "expression", "value", "passed", "fault")
)
def test_what_it_returns(make, expression, value, passed, fault):
    score = returning(make, expression)
    assert (score.value, score.passed, score.error_class) == (value, passed, "value" if fault else None)
    assert (fault or "") in (score.error or "")


def test_detail_and_steps_are_kept_and_where_it_passes_can_be_chosen(make):
    assert returning(make, "0.25", pass_at=0.25).passed is True
    score = returning(make, "{'value': 1, 'detail': 'x' * 5000, 'steps': [{'end': 3, 'value': 0.5}]}")
    assert score.detail == "x" * 2000
    assert [(step.end, step.value) for step in score.steps or ()] == [(3, 0.5)]
    assert returning(make, "{'value': 1, 'detail': '\\ud800\\x00'}").detail == "\ufffd\ufffd"


def test_the_traceback_has_the_persons_lines_alone(make):
    inner = "import json\ndef inner(text):\n    return json.loads(text)\n\n"
    (score,) = scores(make(f"{inner}def verify(sample):\n    return inner('{{')\n"), "x")
    assert score.error_class == "verifier"
    assert score.error.startswith("JSONDecodeError")
    lines = [line for line in score.traceback.splitlines() if line.startswith("  File")]
    assert lines == ['  File "verifier.py", line 6, in verify', '  File "verifier.py", line 3, in inner']
    assert score.traceback.endswith(score.error)


@pytest.mark.parametrize(("body", "error"), cases("python/raised", "body", "error"))
def test_whatever_is_raised_is_an_error_of_the_sample(make, body, error):
    (score,) = scores(make(f"def verify(sample):\n    {body}\n"), "x")
    assert (score.error_class, (score.error or "")[: len(error)]) == ("verifier", error)
    assert len(score.error) == 2000 if "ValueError" in error else len(score.error) < 2000
    assert "verifier.py" in score.traceback
    assert len(score.traceback) <= 4096
    json.dumps(score.model_dump(mode="json")).encode()


def test_what_is_printed_stays_with_its_sample(make):
    printed = scores(make(PROGRAMS["prints"], limits=SINGLE), "a", "long", "bad", "b")
    begin = [f"saw {completion}\né\ufffd\n" for completion in ("a", "long", "bad", "b")]
    assert [score.printed[:12] for score in printed] == [text[:12] for text in begin]
    assert [len(score.printed) for score in printed] == [9, 4096, 11, 9]
    assert [score.error for score in printed] == [None, None, "ValueError: bad", None]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (f"1 / 0\n{ONE}", 'File "verifier.py", line 1, in <module>\n    1 / 0'),
        (f"raise SystemExit\n{ONE}", "SystemExit"),
        ("verify = 3", "no function verify"),
        (f"x = bytearray(10 * 2**30)\n{ONE}", "MemoryError"),
        (f"regex = __import__('regex')\n{ONE}", "ModuleNotFoundError"),  # `import` the check would tell already
        (f"while True:\n    pass\n{ONE}", "loading took over 0.5 s"),
    ],
)
def test_a_source_that_cannot_be_loaded_is_told_before_anything_is_scored(make, monkeypatch, source, error):
    if "loading took" in error:
        monkeypatch.setattr("grpo_core.rewards.python.session_slot.LOAD_SECONDS", 0.5)
    with pytest.raises(RewardError, match=r"cannot be loaded|no function") as refused:
        make(source, limits={"deadline_seconds": 0.5} if "loading took" in error else None)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("package", "expression"),
    [
        ("numpy", "numpy.float32(0.5) if numpy.bool_(True) else 0"),
        ("sympy", "bool(sympy.simplify('x*(x+1) - x**2 - x') == 0) / 2"),
        ("math-verify", "math_verify.verify(math_verify.parse('$1/2$'), math_verify.parse('$0.5$')) / 2"),
        ("regex", "len(regex.findall(r'\\p{L}', 'é')) / 2"),
    ],
)
def test_a_package_can_be_used_where_it_is_named(make, package, expression):
    source = f"import {package.replace('-', '_')}\ndef verify(sample):\n    return {expression}"
    runner = make(source, packages=[package], memory_mb=2048, limits=SINGLE)
    (score,) = scores(runner, "x")
    assert (score.value, score.error) == (0.5, None)
    assert runner.facts()["mine"]["packages"].keys() == {package}


def test_a_package_that_is_not_installed_is_named(make, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(session, "version", missing)
    with pytest.raises(ConfigError, match="scipy"):
        make(ONE, packages=["scipy"])


def test_the_same_sample_gets_the_same_random_numbers(make):
    source = "import random\ndef verify(sample):\n    return random.random()"
    first, again = scores(make(source), "a", "b", "c"), scores(make(source), "c", "a", "b", "a")
    assert len({score.value for score in first}) == 3
    assert [score.value for score in again] == [first[index].value for index in (2, 0, 1, 0)]
    # And sets of text have the same order in every box.
    words = "words = set('alpha beta gamma delta epsilon zeta'.split())"
    source = f"{words}\ndef verify(sample):\n    return {{'value': 1, 'detail': ' '.join(words)}}"
    assert len({scores(make(source), "a")[0].detail for _ in range(3)}) == 1


def test_order_is_kept_with_several_boxes(make):
    source = "import time\ndef verify(sample):\n    x = float(sample.completion)\n    time.sleep(x)\n    return x"
    completions = [str(0.02 * (n * 7 % 5)) for n in range(20)]
    results = scores(make(source, limits={"workers": 4}), *completions)
    assert [score.value for score in results] == [float(text) for text in completions]


def test_a_stop_is_met_while_a_verifier_loops(make):
    runner = make(LOOPS, limits={"workers": 2, "deadline_seconds": 3600})
    with pytest.raises(Stop):
        runner.score(samples("loop", "loop", "a"), check=stop_after(5))
    assert scores(runner, "a")[0].value == 1.0


def test_closing_ends_every_box(make):
    shared_sandbox().run("")  # its keeper lives on
    before = len(below())
    runner = make(ONE)
    scores(runner, *"abcd")
    assert len(below()) > before
    runner.close()
    runner.close()
    assert len(below()) == before


def test_facts_name_the_source_the_sandbox_and_the_limits(make):
    facts = make(ONE, memory_mb=256, call_seconds=5).facts()["mine"]
    assert facts == {
        "source_sha256": hashlib.sha256(ONE.encode()).hexdigest(),
        "packages": {},
        "sandbox": shared_sandbox().report.words,
        "memory_mb": 256,
        "call_seconds": 5.0,
        "workers": 2,
    }
    assert json.loads(json.dumps(facts)) == facts


# ---------------------------------------------------------------------- the source is read, never run


GOOD = "def verify(sample):\n    return 1.0\n"


def only(source, *packages):
    (fault,) = check_source(source, packages)
    return fault


@pytest.mark.parametrize(
    ("source", "line", "column", "fault", "shown"),
    cases("python/sources", "source", "line", "column", "fault", "shown"),
)
def test_a_fault_is_told_with_its_place_in_characters(source, line, column, fault, shown):
    if fault is None:
        assert check_source(source) == []
    else:
        refusal = only(source)
        assert (refusal.line, refusal.column) == (line, column)
        assert fault in refusal.message
        assert shown in (None, refusal.shown)


def test_a_long_line_is_shown_around_the_caret():
    line, caret = only("x = '" + "a" * 5000 + "' +\n" + GOOD).shown.splitlines()
    assert len(line) < 140
    assert caret.index("^") < len(line) + 1


def test_all_faults_are_told_in_order():
    faults = check_source("import os\nimport select\ndef verify():\n    import socket\n    return 1\n")
    assert [fault.line for fault in faults] == [1, 2, 3, 4]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_allows_its_modules(package):
    source = "".join(f"import {module}\n" for module in PACKAGES[package]) + GOOD
    assert check_source(source, [package]) == []
    assert len(check_source(source)) == len(PACKAGES[package])


HARMFUL = [
    *("(" * 30_000, "-" * 60_000 + "1", "[" * 10_000 + "]" * 10_000, "{" * 60_000, "f(" * 20_000),
    *("x = " + "not " * 15_000 + "1", "if 1:\n" + "".join(" " * n + "if 1:\n" for n in range(1, 300))),
    *("1" * 60_000, "a." * 30_000 + "a", "lambda:" * 9_000 + "1", "1 if 1 else " * 5_000 + "1", "f'" + "{" * 5_000),
    *("x = '" + "\\N{" * 5_000, "\ud800", "'\ud800'", "\\" * 60_000, "#" * 60_000, "# coding: nothing\nx = 1"),
    *("# coding: utf-16\n" + GOOD, "é" * 40_000, "@" * 60_000, "a" * 65_537),
]


@pytest.mark.parametrize("source", HARMFUL, ids=range(len(HARMFUL)))
def test_no_source_does_harm_to_the_process_that_reads_it(source):
    assert check_source(source) or source.startswith("# coding: utf-16")


@given(st.text(alphabet=st.sampled_from("()[]{}:,.\n\t '\"#\\@=+-*fdeclassvyriy0 1\0é"), max_size=200))
def test_any_text_is_read_or_told_as_wrong(text):
    assert all(fault.line >= 1 and fault.column >= 1 for fault in check_source(text))


def test_a_source_at_the_limit_is_read_and_one_beyond_is_not():
    source = GOOD + "#" * (MOST_BYTES - len(GOOD))
    assert check_source(source) == []
    assert f"{MOST_BYTES + 1:,} bytes" in only(source + "#").message


def test_reading_a_source_runs_none_of_it():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS["reads a source"]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_config_with_a_wrong_source_is_refused_with_line_and_caret():
    with pytest.raises(ConfigError) as refused:
        rubric_of({"kind": "python", "params": {"source": "import os\ndef verify(sample):\n    return 1"}})
    (problem,) = refused.value.problems
    assert problem.path == "reward.components.0.params.source"
    assert problem.message.startswith("line 1: ")
    assert problem.message.endswith("\n   1 | import os\n     | ^")
