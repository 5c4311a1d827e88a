"""Mutants against programs changed by hand; and the probe of real tests in the real sandbox."""

import ast

import pytest

from grpo_core.data.problem import Problem
from grpo_core.probe.mutants import MUTATIONS, mutants, parsed, renamed
from tests.tables import cases

from .probing import component, probed, rubric_of

BY_NAME = {one.name.removeprefix("mutant_"): one for one in MUTATIONS}
GRADE = "def grade(points):\n    if points >= 90:\n        return 'A'\n    return 'B'\n"


@pytest.mark.parametrize(("name", "source", "changed"), cases("probe/mutants", "mutation", "source", "changed"))
def test_a_mutation_changes_one_place(name, source, changed):
    assert sorted(mutants(source, BY_NAME[name])) == sorted(changed)


def test_what_is_no_program_has_no_mutants():
    assert parsed("def f(:") is None
    assert parsed("(" * 500 + ")" * 500) is None
    assert parsed("x = 1\n" * 10_000) is None  # longer than is read
    assert list(mutants("def f(:", BY_NAME["constant"])) == []


def test_names_are_changed_and_what_is_computed_is_not():
    source = "import math\ndef area(r, n=2):\n    square = r ** n\n    return math.pi * square\n"
    text = renamed(source)
    assert text == ast.unparse(ast.parse(source.replace("square", "value_0")))
    assert renamed("def f(a):\n    return a") is None
    assert renamed("x = 1\ndef f():\n    x = 2\n    return x") is None  # also a name of the module


def graded(*tests):
    cases = [{"call": "grade", "args": [points], "returns": letter} for points, letter in tests]
    return Problem("grade", "Write grade(points).", "", {"tests": cases, "solution": GRADE})


@pytest.mark.parametrize(
    ("tests", "verdict", "pays_wrong"),
    [
        pytest.param(
            ((100, "A"), (91, "A"), (90, "A"), (89, "B"), (0, "B")), "clean", set(), marks=pytest.mark.slow, id="clean"
        ),
        # points > 90 instead of >= 90, and None instead of 'B': nobody looks there.
        (((100, "A"),), "pays_wrong", {"mutant_comparison", "mutant_return_none"}),
    ],
)
def test_mutants_live_where_no_case_looks(tests, verdict, pays_wrong):
    report = probed(rubric_of(component("code")), [graded(*tests)])
    assert (report.verdict, set(report.pays_wrong)) == (verdict, pays_wrong)
    assert (report.calibration.form, report.of("as_given").paid) == ("python", 1)
    assert report.sandbox is not None
    hacks = [one for one in report.classes if one.about == "hacks"]
    assert sum(one.paid for one in hacks) == 0
    assert min(len(hacks), sum(one.n for one in hacks)) >= 30
    if pays_wrong:
        assert (report.of("mutant_return_none").paid, report.of("mutant_return_none").n) == (1, 2)
