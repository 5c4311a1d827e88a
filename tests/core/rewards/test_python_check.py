"""A verifier's source is read, never run: each fault is told with its line and a caret under its place."""

import subprocess
import sys
import time
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.config_reward import RewardConfig
from grpo_core.errors import ConfigError
from grpo_core.rewards import Rubric
from grpo_core.rewards.python_check import MOST_BYTES, PACKAGES, SourceFault, check_source

GOOD = "def verify(sample):\n    return 1.0\n"


def only(source: str, *packages: str) -> SourceFault:
    (fault,) = check_source(source, packages)
    return fault


@pytest.mark.parametrize(
    "source",
    [
        GOOD,
        "import math, re\ndef verify(sample, factor=2, *, on=False, **rest):\n return 1",
        "def verify(*samples):\n    return samples[0].tokens > 3",
        "verify = lambda sample: len(sample.completion)",
        "from functools import partial as verify",
        "try:\n    def verify(sample):\n        return 1\nfinally:\n    pass",
        "def verify(sample):\n    raise ValueError('never')",
        'def verify(sample):\n    return "\\d" in sample.completion',
        "import xml.etree as tree\ndef verify(sample):\n    def inner():\n        yield 1\n    return sum(inner())",
        "# -*- coding: utf-8 -*-\ndef verify(sample):\n    return 'é' in sample.answer\n",
    ],
)
def test_sources_that_can_be_tried(source: str) -> None:
    assert check_source(source) == []


def test_a_syntax_error_is_shown_with_its_line_and_a_caret() -> None:
    fault = only("import re\n\ndef verify(sample):\n    return (1 +\n\nx = 2\n")
    assert (fault.line, fault.column) == (4, 12)
    assert fault.message == "syntax error: '(' was never closed"
    assert fault.shown == "   4 |     return (1 +\n     |            ^"


def test_the_caret_counts_characters_and_follows_tabs() -> None:
    fault = only("def verify(sample):\n\treturn 'é🦊' + import\n")
    assert (fault.line, fault.column) == (2, 16)
    assert fault.shown.splitlines()[1] == "     | \t" + " " * 14 + "^"
    assert only("é = 1; import os\n" + GOOD).column == 8
    assert only("é = 1; import os\n" + GOOD).shown == "   1 | é = 1; import os\n     |        ^"


def test_a_long_line_is_shown_around_the_caret() -> None:
    fault = only("x = '" + "a" * 5000 + "' +\n" + GOOD)
    line, caret = fault.shown.splitlines()
    assert len(line) < 140
    assert caret.index("^") < len(line) + 1


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        ("import os\n" + GOOD, 1, 1, "the import of 'os' is not allowed in a verifier"),
        (GOOD + "    import subprocess as s\n", 3, 5, "the import of 'subprocess' is not allowed in a verifier"),
        (
            "from urllib.request import urlopen\n" + GOOD,
            1,
            1,
            "the import of 'urllib.request' is not allowed in a verifier",
        ),
        ("import maths\n" + GOOD, 1, 1, "the import of 'maths' is not allowed in a verifier; did you mean 'math'?"),
        (
            "import math, numpy\n" + GOOD,
            1,
            1,
            "the import of 'numpy' needs the package numpy: add it to the verifier's packages",
        ),
        (
            "import mpmath\n" + GOOD,
            1,
            1,
            "the import of 'mpmath' needs the package sympy: add it to the verifier's packages",
        ),
        ("from . import rules\n" + GOOD, 1, 1, "a verifier is one file: there is nothing beside it to import from"),
        ("from .. import *\n" + GOOD, 1, 1, "a verifier is one file: there is nothing beside it to import from"),
        ("def verify():\n    return 1", 1, 1, "verify takes no argument; it is called with one: verify(sample)"),
        (
            "\ndef verify(completion, answer):\n    return 1",
            2,
            1,
            "verify takes 2 arguments without a default; it is called with one: verify(sample)",
        ),
        (
            "def verify(sample, *, strict):\n    return 1",
            1,
            23,
            "verify is called as verify(sample), so 'strict' needs a default",
        ),
        ("async def verify(sample):\n    return 1", 1, 1, "verify is async; write `def verify(sample):`"),
        ("def verify(sample):\n    yield 1", 1, 1, "verify has `yield`, so it gives no value; use `return`"),
        (
            "def verify(sample):\n    1.0",
            1,
            1,
            "verify never returns a value; return a number, True or False, or a dict",
        ),
        (
            "def verify(sample):\n    def inner():\n        return 1\n    inner()",
            1,
            1,
            "verify never returns a value; return a number, True or False, or a dict",
        ),
        (
            "def verfy(sample):\n    return 1",
            2,
            1,
            "the source defines no function verify(sample); rename verfy",
        ),
        ("x = 1", 1, 1, "the source defines no function verify(sample)"),
        ("class A:\n    x = 1", 2, 1, "the source defines no function verify(sample)"),
        ("", 1, 1, "the source is empty; it must define verify(sample)"),
        (" \n\n", 1, 1, "the source is empty; it must define verify(sample)"),
        ("x = 1\0" + GOOD, 1, 1, "the source holds the character NUL; take it out"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(source: str, line: int, column: int, message: str) -> None:
    fault = only(source)
    assert (fault.line, fault.column, fault.message) == (line, column, message)


def test_all_faults_are_told_in_order() -> None:
    faults = check_source("import os\nimport select\ndef verify():\n    import socket\n    return 1\n")
    assert [fault.line for fault in faults] == [1, 2, 3, 4]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_allows_its_modules(package: str) -> None:
    source = "".join(f"import {module}\n" for module in PACKAGES[package]) + GOOD
    assert check_source(source, [package]) == []
    assert len(check_source(source)) == len(PACKAGES[package])


@pytest.mark.parametrize(
    "source",
    [
        "(" * 30_000,
        "-" * 60_000 + "1",
        "[" * 10_000 + "]" * 10_000,
        "{" * 60_000,
        "f(" * 20_000,
        "x = " + "not " * 15_000 + "1",
        "if 1:\n" + "".join(" " * n + "if 1:\n" for n in range(1, 300)),
        "1" * 60_000,
        "a." * 30_000 + "a",
        "lambda:" * 9_000 + "1",
        "1 if 1 else " * 5_000 + "1",
        "f'" + "{" * 5_000,
        "x = '" + "\\N{" * 5_000,
        "\ud800",
        "'\ud800'",
        "\\" * 60_000,
        "#" * 60_000,
        "# coding: nothing\nx = 1",
        "# coding: utf-16\n" + GOOD,
        "é" * 40_000,
        "@" * 60_000,
        "a" * 65_537,
    ],
)
def test_no_source_does_harm_to_the_process_that_reads_it(source: str) -> None:
    began = time.process_time()
    assert check_source(source) or source.startswith("# coding: utf-16")
    assert time.process_time() - began < 20  # a guard against exponential time, not a measure


@given(st.text(alphabet=st.sampled_from("()[]{}:,.\n\t '\"#\\@=+-*fdeclassvyriy0 1\0é"), max_size=200))
def test_any_text_is_read_or_told_as_wrong(text: str) -> None:
    assert all(fault.line >= 1 and fault.column >= 1 for fault in check_source(text))


def test_a_source_at_the_limit_is_read_and_one_beyond_is_not() -> None:
    source = GOOD + "#" * (MOST_BYTES - len(GOOD))
    assert check_source(source) == []
    assert only(source + "#").message == f"the source has {MOST_BYTES + 1:,} bytes; it may have 65,536"


def test_reading_a_source_runs_none_of_it(tmp_path: object) -> None:
    code = dedent(
        """
        import sys
        from grpo_core.rewards.python_check import check_source
        source = "print('ran')\\nraise SystemExit(3)\\ndef verify(sample: print('ran')) -> print('ran'): return 1"
        assert check_source(source) == []
        assert not {"torch", "numpy", "sympy"} & set(sys.modules)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_config_with_a_wrong_source_is_refused_with_line_and_caret() -> None:
    component = {"name": "mine", "kind": "python", "params": {"source": "import os\ndef verify(sample):\n    return 1"}}
    with pytest.raises(ConfigError) as refused:
        Rubric(RewardConfig.model_validate({"components": [component]}))
    (problem,) = refused.value.problems
    assert problem.path == "reward.components.0.params.source"
    assert problem.message == ("line 1: the import of 'os' is not allowed in a verifier\n   1 | import os\n     | ^")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (
            {"columns": ["prompt"]},
            "'prompt' is no further field of a problem: the sample always has it, as sample.prompt",
        ),
        ({"packages": ["requests"]}, "'jsonschema', 'math-verify', 'numpy', 'regex', 'scipy' or 'sympy'"),
        ({"memory_mb": 1}, "greater than or equal to 64"),
        ({"call_seconds": 0}, "greater than 0"),
        ({"source": "#" * (MOST_BYTES + 1)}, "65536"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, object], told: str) -> None:
    component = {"name": "mine", "kind": "python", "params": {"source": GOOD, **params}}
    with pytest.raises(ConfigError, match=told):
        Rubric(RewardConfig.model_validate({"components": [component]}))
