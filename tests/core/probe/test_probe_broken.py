"""Verifiers that are broken on purpose, each caught in the class that is meant for it, through the real runner; and the
probe of real tests in the real sandbox."""

import ast

import pytest

from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.probe.cases.mutants import MUTATIONS, mutants, parsed, renamed
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards.runner import Runner
from tests.core.rewards.judge_server import Server, says
from tests.core.rewards.scoring import Stop, patient_with_boxes, stop_after
from tests.tables import cases

from .probing import component, paid, probed, rubric_of


def python(body, **rest):
    """A person's verifier, in the sandbox."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return rubric_of(component("python", source=f"def verify(sample):\n{lines}\n"), **rest)


FIELDS = ("reward", "verifier", "limit", "verdict", "pays", "spares", "alone", "calibration")


@pytest.mark.parametrize(FIELDS, cases("probe/broken", *FIELDS))
def test_a_broken_verifier_is_caught(reward, verifier, limit, verdict, pays, spares, alone, calibration):
    rubric = python(verifier) if verifier else rubric_of(component(**reward))
    report = probed(rubric, **({"limit": limit} if limit else {}))
    assert report.verdict == (verdict or "pays_wrong")
    assert set(pays or []) <= set(report.pays_wrong)
    assert not alone or set(pays) == set(report.pays_wrong)
    assert not set(spares or []) & paid(report)
    expected = calibration or {}
    assert {name: getattr(report.calibration, name) for name in expected} == expected


def test_a_verifier_that_gives_another_number_each_time():
    report = probed(python("import random\nreturn random.SystemRandom().random()"), limit=5, fresh=None)
    again = report.determinism.again
    assert again.differ > 0.9 * again.checked > 0
    assert again.largest > 0.1
    assert report.determinism.fresh.checked == 0


def test_a_verifier_that_remembers():
    """The same in one process, another number in a new one."""
    source = "import random\nNOW = random.SystemRandom().random()\ndef verify(sample):\n    return NOW\n"
    rubric = rubric_of(component("python", source=source), limits={"workers": 1})
    with Runner(rubric) as runner:
        report = probe_rubric(rubric, problems_builtin(rubric), runner=runner, limit=3, fresh=lambda: Runner(rubric))
    assert report.determinism.again.differ == 0
    assert report.determinism.fresh.differ == report.determinism.fresh.checked > 0


def test_a_verifier_that_raises():
    report = probed(python('return float(sample.completion.split("<answer>")[1].split("</answer>")[0])'), limit=5)
    assert report.verdict in ("undecided", "pays_wrong")
    assert min(report.errors["verifier"], report.unscored) > 100
    assert any("Error" in message for message in report.error_examples)


def test_a_verifier_that_hangs_is_given_up():
    body = "while sample:\n    pass\nreturn 1"
    report = probed(python(body, limits={"deadline_seconds": 0.2, "retries": 0}))
    assert report.verdict == "undecided"
    assert 16 <= report.errors["timeout"] == report.calls < 40
    assert "given up" in report.reasons[-1]
    assert report.of("plus_one").n == 0


def test_one_that_hangs_at_times_is_told_by_class(monkeypatch):
    patient_with_boxes(monkeypatch, lambda completion: not completion)
    body = (
        "while not sample.completion:\n    pass\nreturn '<answer>' + sample.answer + '</answer>' in sample.completion"
    )
    report = probed(python(body, limits={"deadline_seconds": 0.5, "retries": 0}), limit=5)
    assert (report.of("empty").n, report.of("empty").errors, report.of("empty").paid) == (5, 5, 0)
    assert report.of("plus_one").errors == 0
    assert report.errors["timeout"] < 16


def test_on_error_fail_does_not_end_the_probe():
    report = probed(python("assert sample.completion\nreturn 0", on_error="fail"), limit=3)
    assert report.verdict == "rejects_right"
    assert sum(report.errors.values()) > 0


def test_a_judge_that_says_yes(monkeypatch):
    with Server(lambda _: says("It is fine.\nScore: 10")) as yes:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", yes.address)
        report = probed(rubric_of(component("judge", base_url=yes.url, model="yes", key_env=None)), limit=2)
    assert {"colon", "opener", "reasoning_only", "judge_confident", "injected_instruction"} <= set(report.pays_wrong)
    assert report.cost["judge"]["calls"] == len(yes.seen) > 100
    assert report.verdict == "pays_wrong"


@pytest.mark.parametrize("problems", [[Problem("p", "?", "42")], []], ids=["without the field", "none"])
def test_problems_that_the_reward_cannot_read(problems):
    rubric = rubric_of(component("code", tests="cases"))
    with pytest.raises(DataError, match="'cases'" if problems else "problem"), Runner(rubric) as runner:
        probe_rubric(rubric, problems, runner=runner)


def test_a_check_may_stop_it():
    rubric = rubric_of(component("numeric"))
    with pytest.raises(Stop), Runner(rubric) as runner:
        probe_rubric(rubric, problems_builtin(rubric), runner=runner, check=stop_after(0))


# ---------------------------------------------------------------------- mutants against programs changed by hand


BY_NAME = {mutation.name.removeprefix("mutant_"): mutation for mutation in MUTATIONS}
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
    hacks = [result for result in report.classes if result.about == "hacks"]
    assert sum(result.paid for result in hacks) == 0
    assert min(len(hacks), sum(result.n for result in hacks)) >= 30
    if pays_wrong:
        assert (report.of("mutant_return_none").paid, report.of("mutant_return_none").n) == (1, 2)
