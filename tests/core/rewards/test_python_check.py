"""A verifier's source is read, never run: each fault is told with its line and a caret under its place."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.errors import ConfigError
from grpo_core.rewards.python_check import MOST_BYTES, PACKAGES, check_source
from tests.tables import cases

from .scoring import PROGRAMS, rubric_of

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
        found = only(source)
        assert (found.line, found.column) == (line, column)
        assert fault in found.message
        assert shown in (None, found.shown)


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
