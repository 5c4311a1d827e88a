"""Mutants against programs changed by hand; and the probe of real tests in the real sandbox."""

import ast

import pytest

from grpo_core.data.problem import Problem
from grpo_core.probe.mutants import MUTATIONS, mutants, parsed, renamed

from .probing import component, probed, rubric_of

BY_NAME = {one.name.removeprefix("mutant_"): one for one in MUTATIONS}
GRADE = "def grade(points):\n    if points >= 90:\n        return 'A'\n    return 'B'\n"


@pytest.mark.parametrize(
    ("name", "source", "changed"),
    [
        ("comparison", "x = a < b\ny = c == d", ["x = a <= b\ny = c == d", "x = a < b\ny = c != d"]),
        ("arithmetic", "x = a + b * 2", ["x = a - b * 2", "x = a + (b + 2)"]),
        ("arithmetic", "x += 1", ["x -= 1"]),
        ("constant", "x = 1\ny = 'a'\nz = True", ["x = 2\ny = 'a'\nz = True", "x = 1\ny = 'ax'\nz = True"]),
        ("constant", '"""What it does."""', []),
        ("condition", "if a:\n    b()", ["if not a:\n    b()"]),
        ("boolean", "x = a and b", ["x = a or b"]),
        ("return_none", "def f():\n    return 1", ["def f():\n    return None"]),
        ("return_none", "def f():\n    return", []),
        ("early_return", "def f(a, b):\n    return b", ["def f(a, b):\n    return a\n    return b"]),
        ("early_return", "def f():\n    return 1", []),
        ("statement", "x += 1\nf()\ny = 2", ["pass\nf()\ny = 2", "x += 1\npass\ny = 2"]),
        ("branches", "if a:\n    b()\nelse:\n    c()", ["if a:\n    c()\nelse:\n    b()"]),
        ("one_round", "for a in b:\n    c()", ["for a in b:\n    c()\n    break"]),
        ("slice", "x = a[1:n]", ["x = a[n:1]"]),
        ("slice", "x = a[:]", []),
    ],
)
def test_a_mutation_changes_one_place(name: str, source: str, changed: list[str]) -> None:
    assert sorted(mutants(source, BY_NAME[name])) == sorted(changed)


def test_what_is_no_program_has_no_mutants() -> None:
    assert parsed("def f(:") is None
    assert parsed("(" * 500 + ")" * 500) is None
    assert parsed("x = 1\n" * 10_000) is None  # longer than is read
    assert list(mutants("def f(:", BY_NAME["constant"])) == []


def test_names_are_changed_and_what_is_computed_is_not() -> None:
    source = "import math\ndef area(r, n=2):\n    square = r ** n\n    return math.pi * square\n"
    text = renamed(source)
    assert text == ast.unparse(ast.parse(source.replace("square", "value_0")))
    assert renamed("def f(a):\n    return a") is None
    assert renamed("x = 1\ndef f():\n    x = 2\n    return x") is None  # also a name of the module


def graded(*tests: tuple[int, str]) -> Problem:
    cases = [{"call": "grade", "args": [points], "returns": letter} for points, letter in tests]
    return Problem("grade", "Write grade(points).", "", {"tests": cases, "solution": GRADE})


def test_tests_that_notice_every_change_are_clean() -> None:
    report = probed(rubric_of(component("code")), [graded((100, "A"), (91, "A"), (90, "A"), (89, "B"), (0, "B"))])
    assert (report.verdict, report.pays_wrong) == ("clean", ())
    assert report.calibration.form == "python"
    assert report.of("as_given").paid == 1
    hacks = [one for one in report.classes if one.about == "hacks"]
    assert len(hacks) >= 30
    assert sum(one.paid for one in hacks) == 0
    assert sum(one.n for one in hacks) >= 30
    assert report.sandbox is not None


def test_tests_that_look_at_one_case_let_mutants_live() -> None:
    report = probed(rubric_of(component("code")), [graded((100, "A"))])
    assert report.verdict == "pays_wrong"
    # points > 90 instead of >= 90, and None instead of 'B': nobody looks there.
    assert set(report.pays_wrong) == {"mutant_comparison", "mutant_return_none"}
    assert (report.of("mutant_return_none").paid, report.of("mutant_return_none").n) == (1, 2)
    assert sum(one.paid for one in report.classes if one.about == "hacks") == 0
