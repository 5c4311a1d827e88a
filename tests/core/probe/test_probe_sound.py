"""Sound verifiers are clean, and what is paid or refused is true of them."""

import pytest

from grpo_core.data.loaders import load_problems
from grpo_core.probe.cases.cases import cases, read_questions
from grpo_core.probe.cases.forms import WHOLE
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.report import ProbeReport
from grpo_core.probe.run import CLASSES
from grpo_core.rewards.kinds.numeric import parse_number
from tests.needs import TEST_DATA, needs

from .probing import component, paid, probed, rubric_of

DEMO = (component("exact", weight=0.8), component("r1_format", weight=0.2))
R1 = (component("numeric"), component("r1_format"))
WORDS_AND_MARKS = {
    *("backticks", "quotes", "sentence_inside", "colon_inside"),
    *("unit", "unit_short", "words", "full_width", "arabic_indic"),
    *("over_one", "latex_dfrac", "latex_fraction", "fraction_unreduced"),
}
"""What numeric does not pay, whatever it extracts by a mark: it does not read it, or wants a whole number worked out
(docs/rewards/numeric.md)."""
LAST_NUMBER_PAYS = {"gold_in_passing", "gold_in_comment", "gold_denied"}
"""The last number counts wherever it stands: these completions say another answer, or none, and are paid."""


@pytest.fixture(scope="module")
def gsm8k():
    needs("gsm8k")
    return load_problems(TEST_DATA / "gsm8k" / "test.jsonl", "gsm8k")


SOUND = (
    DEMO,
    R1,
    (component("choice", extract="boxed", column="options", reference="text"),),
    (component("exact", extract="boxed"), component("tags", sequence=["think", "answer"], weight=0.2)),
)
MORE_SOUND = (
    (component("numeric", weight=0.8), component("r1_format", weight=0.2)),
    (component("choice"),),
    (component("choice", extract="whole", column="options", reference="from_0"),),
    (component("numeric"), component("length", unit="characters", weight=0.1)),
    (component("numeric"), component("equations", weight=0.2)),
    (component("length", shape="cosine", unit="characters"),),
)


@pytest.mark.parametrize(
    "components",
    [*SOUND, *(pytest.param(more, marks=pytest.mark.slow) for more in MORE_SOUND)],
    ids=lambda components: "+".join(component["kind"] for component in components),
)
def test_a_sound_reward_is_clean(components):
    report = probed(rubric_of(*components), source="builtin")
    assert (report.verdict, report.pays_wrong, paid(report)) == ("clean", (), set())
    assert report.of("as_given").rate == 0
    assert report.errors == {}
    assert report.determinism.again.differ == report.determinism.fresh.differ == 0
    assert report.determinism.fresh.checked == report.determinism.again.checked > 30


def test_r1_pays_half_for_the_form_alone_and_its_report_survives_json():
    report = probed(rubric_of(*R1))
    assert (report.calibration.form, report.calibration.full) == ("r1", 2.0)
    assert report.of("form_wrong").mean_share == 0.5
    assert "form_wrong" in report.pays_part
    assert "form_wrong" not in report.pays_wrong
    written = report.to_json()
    assert written["schema"] == "cohort-probe/1"
    assert ProbeReport.from_json(written) == report


@pytest.mark.parametrize("kind", ["numeric", "exact"])
@pytest.mark.parametrize(
    "extract", ["answer_tag", *(pytest.param(how, marks=pytest.mark.slow) for how in ("hashes", "boxed", "whole"))]
)
def test_no_wrong_class_is_paid_on_gsm8k(gsm8k, kind, extract):
    report = probed(rubric_of(component(kind, extract=extract)), gsm8k, limit=20)
    assert (report.verdict, paid(report)) == ("clean", set())
    assert report.of("as_given").n == 20
    assert report.of("as_given").rate == 0


@pytest.mark.parametrize("kind", ["numeric", "exact"])
def test_the_last_number_is_paid_wherever_it_stands(gsm8k, kind):
    report = probed(rubric_of(component(kind, extract="last_number")), gsm8k, limit=20)
    assert report.verdict == "pays_wrong"
    # A prompt may end in its own answer's number: then the prompt alone is paid too.
    assert set(report.pays_wrong) - {"echo", "echo_in_form"} == LAST_NUMBER_PAYS
    assert paid(report) - {"echo", "echo_in_form"} == LAST_NUMBER_PAYS


def test_what_numeric_refuses_on_gsm8k(gsm8k):
    report = probed(rubric_of(component("numeric")), gsm8k, limit=20)
    assert set(report.rejects) == WORDS_AND_MARKS
    assert {report.of(name).rate for name in WORDS_AND_MARKS} == {1.0}
    assert report.false_negative.classes_with_mistakes == len(WORDS_AND_MARKS)


def test_wrong_numbers_are_wrong_and_right_ones_are_right():
    """Each class of numbers, checked by value and not by a reward: with plain fractions, apart from the verifier."""
    problems = [problem for problem in problems_builtin(rubric_of(component("numeric"))) if problem.id[0] == "n"]
    made = cases(read_questions(rubric_of(component("numeric")), problems), WHOLE, seed=0)
    numbers = [entry for entry in CLASSES if entry.about == "numbers"]
    for entry in numbers:
        texts = [(case.number, text) for case in made for text in entry.make(case)]
        assert texts, entry.name  # the built-in problems reach every class
        for number, text in texts:
            value = parse_number(text)
            right = value != number if entry.family == "false_positive" else value in (None, number)
            assert right, (entry.name, text)


@pytest.mark.parametrize(
    ("kind", "subjects"),
    [
        ("numeric", {"number", "expression"}),
        ("exact", {"number", "words"}),
        *((kind, {kind.removesuffix("_schema")}) for kind in ("choice", "json_schema", "code")),
    ],
)
def test_the_builtin_problems_reach_every_subject(kind, subjects):
    rubric = rubric_of(component(kind))
    assert {problem.subject for problem in read_questions(rubric, problems_builtin(rubric))} == subjects


def test_the_seed_decides_all_but_times(gsm8k):
    def report(seed):
        written = probed(rubric_of(component("numeric")), gsm8k, seed=seed, limit=10).to_json()
        return {name: value for name, value in written.items() if name not in ("at", "seconds", "timing")}

    first = report(1)
    assert report(1) == first
    assert report(2)["problems_digest"] != first["problems_digest"]
