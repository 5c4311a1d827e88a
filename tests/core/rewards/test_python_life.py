"""A person's own verifier before the run, beside it and after it: loading, packages, order, stopping, closing."""

import hashlib
import json
import time
from importlib.metadata import PackageNotFoundError

import pytest

from grpo_core.errors import ConfigError, RewardError
from grpo_core.rewards import session
from grpo_core.rewards.session import shared_sandbox
from tests.core.rewards.own_verifier import LOOPS, Make, samples, told
from tests.processes import below


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
        return len(below())

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
