"""What the classes write, and the rules of the verdict, against texts and numbers that were worked out by hand."""

from fractions import Fraction

import pytest

from grpo_core.data.problem import Problem
from grpo_core.probe.cases.case import decimal, plain
from grpo_core.probe.cases.cases import Question, cases, chosen, read_questions
from grpo_core.probe.cases.forms import R1, WHOLE, forms_for
from grpo_core.probe.cases.numbers_right import in_words
from grpo_core.probe.report import Calibration, ClassResult
from grpo_core.probe.run import CLASSES, classes_for
from grpo_core.probe.scoring import ProbeScore, repeats
from grpo_core.probe.verdict import HALF, holds, share_of, verdict_of, what_counts
from tests.tables import cases as table

from .probing import component, rubric_of

BY_NAME = {entry.name: entry for entry in CLASSES}


def number(answer, prompt="Tom has 5 nets and 9 reels. How many things has he?"):
    problems = [
        Question(Problem("p", prompt, answer), "number", answer),
        Question(Problem("q", "?", "70"), "number", "70"),
        Question(Problem("r", "?", "71"), "number", "71"),
    ]
    return cases(problems, WHOLE, seed=0)[0]


def written(name, case):
    return list(BY_NAME[name].make(case))


@pytest.mark.parametrize(("name", "answer", "text"), table("probe/texts", "class", "answer", "text"))
def test_a_class_writes(name, answer, text):
    assert written(name, number(answer)) == ([] if text is None else [text])


def test_a_list_holds_the_right_answer_neither_first_nor_last():
    answers = written("gold_in_list", number("42"))[0].split(", ")
    assert answers.count("42") == 1
    assert answers.index("42") not in (0, len(answers) - 1)


def test_the_form_is_around_every_answer():
    case = cases([Question(Problem("p", "?", "42"), "number", "42")], R1, seed=0)[0]
    thought = "Let me work through it step by step."
    assert written("words", case) == [f"<think>{thought}</think><answer>forty-two</answer>"]
    assert written("form_bare", case) == ["<think></think><answer></answer>"]
    assert written("form_wrong", case) == [f"<think>{thought}</think><answer>43</answer>"]
    assert written("form_cut", case) == [f"<think>{thought}</think><answer>43"]
    in_thought = "<think>I think that it is 42 and check it again.</think><answer>43</answer>"
    assert written("gold_in_thought", case) == [in_thought]


def test_a_text_that_names_the_right_answer_by_chance_is_left_out():
    assert written("judge_scores", number("42")) != []
    assert written("judge_scores", number("10")) == []  # it says "Score: 10"
    assert written("json_claims", number("1")) == []
    assert written("echo", number("42", prompt="42")) == []  # the prompt is the answer
    assert written("formula_of_prompt", number("82", prompt="what is 37 + 45?")) == ["37 + 45"]


@pytest.mark.parametrize(("value", "words"), table("probe/numbers", "value", "words"))
def test_numbers_in_words(value, words):
    assert in_words(Fraction(value)) == words


def test_what_no_words_or_decimals_are_for_is_a_fraction():
    assert in_words(Fraction(1, 2)) is None
    for value, text in (("-0.05", "-0.05"), ("12.50", "12.5"), ("1/3", None), ("100", "100"), ("-7", "-7")):
        assert decimal(Fraction(value)) == text
        assert plain(Fraction(value)) == (text or value)


def test_there_are_as_many_classes_as_asked_for():
    """For maths: at least 20 of right answers, 20 of wrong ones, 40 in all; hacks and mutants for code."""
    case = cases([Question(Problem("p", "5 and 9", "-1234.5"), "number", "-1234.5")], R1, seed=0)[0]
    other = number("1234")
    made = {entry.name: entry for entry in CLASSES if [*entry.make(case)] or [*entry.make(other)]}
    right = [name for name, entry in made.items() if entry.family == "false_negative"]
    wrong = [name for name, entry in made.items() if entry.family == "false_positive"]
    assert all([*entry.make(other)] == [*entry.make(other)] for entry in CLASSES)  # the same texts again
    assert len(right) >= 40
    assert len(wrong) >= 60
    assert sum(entry.about == "hacks" for entry in CLASSES) >= 30
    assert sum(entry.name.startswith("mutant_") for entry in CLASSES) >= 10


@pytest.mark.parametrize(("kinds", "talked_to"), [(["numeric"], False), (["numeric", "python"], True)])
def test_only_a_rubric_that_may_ask_a_model_is_talked_to(kinds, talked_to):
    source = {"python": {"source": "def verify(sample):\n    return 1\n"}}
    rubric = rubric_of(*(component(kind, **source.get(kind, {})) for kind in kinds))
    classes = [entry for entry in classes_for(rubric) if entry.about == "judge" and entry.name.startswith("judge_")]
    assert bool(classes) is talked_to


FIELDS = ("kind", "params", "answer", "subject", "letter", "gold")


@pytest.mark.parametrize(FIELDS, table("probe/answers", *FIELDS))
def test_what_an_answer_is(kind, params, answer, subject, letter, gold):
    problem = Problem("p", "?", answer, {"choices": ["red", "blue"]})
    (problem,) = read_questions(rubric_of(component(kind or "exact", **(params or {}))), [problem])
    assert (problem.subject, problem.letter if letter else None) == (subject, letter)
    assert gold in (None, problem.gold)


def test_forms_begin_with_what_the_parameters_name():
    def first(*components):
        return forms_for(rubric_of(*components), {"number"})[0].name

    assert first(component("numeric", extract="boxed")) == "boxed"
    assert first(component("exact", extract="hashes")) == "hashes"
    assert first(component("numeric", extract="whole"), component("r1_format")) == "r1"
    tags = forms_for(rubric_of(component("tags", sequence=["plan", "note?", "step{2}", "out"])), {"number"})[0]
    text = tags.write(Problem("p", "?", "42"), "42", "so")
    assert text == "<plan>so</plan><step>so</step><step>so</step><out>42</out>"


def test_problems_are_picked_by_seed_in_their_order():
    problems = [Problem(str(number), "?", "1") for number in range(100)]
    first = [problem.id for problem in chosen(problems, limit=10, seed=0)]
    assert first == sorted(first, key=int)
    assert len(set(first)) == 10
    assert first != [problem.id for problem in chosen(problems, limit=10, seed=1)]
    assert chosen(problems[:3], limit=10, seed=0) == problems[:3]


# ------------------------------------------------------- the rules of the verdict, which are the table in docs/probe.md


def class_result(name, family, n, paid, *, rule="told", errors=0):
    mistakes = paid if family == "false_positive" else n - paid
    return ClassResult(
        name=name,
        title=name,
        about="any",
        family=family,
        rule=rule,
        n=n,
        paid=paid,
        rate=mistakes / n if n else None,
        wilson95=None,
        mean_share=None,
        errors=errors,
        held=holds(rule, mistakes, n),
    )


@pytest.mark.parametrize(("rule", "paid", "n", "held"), table("probe/holds", "rule", "paid", "n", "held"))
def test_when_a_class_holds_a_verifier_back(rule, paid, n, held):
    assert holds(rule, paid, n) is held


@pytest.mark.parametrize(("right", "wrong", "counts"), table("probe/counts", "right", "wrong", "counts"))
def test_what_counts_as_all_and_as_nothing(right, wrong, counts):
    assert what_counts(right, wrong, nominal=2.0) == tuple(counts)


def test_paid_is_more_than_half():
    """DeepSeek-R1 pays 1 for the answer and 1 for the form: the form alone is exactly half and not paid."""
    assert not share_of(1.0, 2.0, 0.0) > HALF
    assert share_of(1.01, 2.0, 0.0) > HALF
    assert not share_of(0.0, 1.0, -1.0) > HALF
    assert share_of(0.1, 1.0, -1.0) == pytest.approx(0.55)


def test_the_first_verdict_that_applies():
    right = class_result("as_given", "false_negative", 20, 20)
    held = class_result("empty", "false_positive", 20, 1, rule="any")
    clean = class_result("plus_one", "false_positive", 20, 1, rule="some")

    def judged(*classes, reference=right, nominal=False, unscored=0):
        basis = Calibration(form="r1", full=1.0, low=0.0, nominal=nominal, tried=())
        return verdict_of(list(classes), reference, basis, calls=100, unscored=unscored)

    def verdict(*classes, **more):
        return judged(*classes, **more)[0]

    (reason,) = judged(held, reference=None)[1]
    assert "1 of 20" in reason
    assert "empty" in reason
    assert verdict(held, clean) == "pays_wrong"
    assert verdict(held, unscored=100) == "pays_wrong"
    assert verdict(clean) == "clean"
    assert verdict(clean, unscored=5) == "clean"
    assert verdict(clean, unscored=6) == "undecided"
    assert verdict(clean, reference=None) == "undecided"
    assert verdict(clean, reference=class_result("as_given", "false_negative", 0, 0)) == "undecided"
    assert verdict(clean, nominal=True) == "rejects_right"
    assert verdict(clean, reference=class_result("as_given", "false_negative", 20, 19)) == "clean"
    assert verdict(clean, reference=class_result("as_given", "false_negative", 20, 18)) == "rejects_right"


def test_scored_twice():
    def scored(reward, value):
        return ProbeScore(reward, reward is None, {}, {"a": value})

    first = [scored(1.0, 1.0), scored(0.5, 0.5), scored(None, None), scored(0.0, 0.0)]
    second = [scored(1.0, 1.0), scored(0.8, 0.8), scored(0.0, 0.0), scored(1e-9, 1e-9)]
    repeated = repeats(first, second)
    assert (repeated.checked, repeated.differ, repeated.share) == (4, 2, 0.5)
    assert repeated.largest == pytest.approx(0.3)
    assert repeats(first, []).share is None
