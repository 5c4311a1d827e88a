"""What a row of the dataset decides: which components score it, which references are right, and that one which cannot
be read is refused before a run; and what kinds see of a prefill."""

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.data import Problem
from grpo_core.errors import DataError
from grpo_core.rewards import KINDS, Rubric, Runner, ScoreRequest
from tests.tables import cases

from .scoring import SINGLE, rubric_of

BY_SOURCE = [
    {"name": "number", "kind": "numeric", "weight": 2, "only": {"column": "source", "values": ["sums", 7]}},
    {"name": "word", "kind": "exact", "only": {"column": "source", "values": ["capitals"]}},
    {"name": "form", "kind": "r1_format", "weight": 0.5},
]
SUM = Problem("sum", "1 + 1?", "2", {"source": "sums"})
CAPITAL = Problem("capital", "Capital of France?", "Paris", {"source": "capitals"})


# ---------------------------------------------------------------------- the components of a row


def test_a_row_is_scored_by_the_components_that_are_for_it():
    right = "<think>a</think><answer>{}</answer>"
    seven = Problem("seven", "q", "2", {"source": 7})
    with Runner(rubric_of(*BY_SOURCE)) as runner:
        scored = runner.score([ScoreRequest(each, right.format(each.answer)) for each in (SUM, CAPITAL, seven)])
    assert [list(score.components) for score in scored] == [["number", "form"], ["word", "form"], ["number", "form"]]
    assert [score.reward for score in scored] == [2.5, 1.5, 2.5]


def test_success_of_a_row_is_that_of_the_component_for_it():
    rubric = rubric_of(*BY_SOURCE)
    assert [rubric.success_of(each) for each in (SUM, CAPITAL)] == ["number", "word"]


def test_a_row_for_which_no_component_is_there_is_refused_with_the_values_that_are():
    rubric = rubric_of(*BY_SOURCE)
    rubric.check_problems([SUM, CAPITAL])
    with pytest.raises(DataError, match=r"the problem x with source 'poems'.*sums \(1\), poems \(1\)"):
        rubric.check_problems([SUM, Problem("x", "q", "a", {"source": "poems"})])
    with pytest.raises(DataError, match="the problem x with source None"):
        rubric.check_problems([Problem("x", "q", "2")])
    extra = {"kind": "exact", "weight": 0.1, "only": {"column": "source", "values": ["capitals"]}}
    rubric_of({"kind": "contains"}, extra).check_problems([SUM, CAPITAL])  # the heaviest is for every row


def test_columns_are_required_of_a_component_s_rows_alone():
    code = {"name": "code", "kind": "code", "only": {"column": "source", "values": ["programs"]}}
    rubric = rubric_of(code, {**BY_SOURCE[0], "weight": 1})
    assert rubric.columns == {"source": "number"}
    rubric.check_problems([SUM])
    with pytest.raises(DataError, match="problem p has no 'tests'"):
        rubric.check_problems([Problem("p", "q", "", {"source": "programs"})])


def test_a_filter_is_part_of_the_digest_and_survives_yaml():
    plain, filtered = rubric_of({"kind": "exact"}), rubric_of({"kind": "exact", "only": {"column": "a", "values": [1]}})
    assert plain.digest != filtered.digest
    assert "only" not in plain.config.model_dump()["components"][0]
    rest = {"model": {"path": "m"}, "data": {"path": "d.jsonl"}, "eval": {"holdout": 5}}
    config = RunConfig.from_dict({**rest, "reward": filtered.config.model_dump()})
    again = RunConfig.from_text(config.to_yaml())
    assert again.reward == filtered.config
    assert again.reward.success_of(["c0"]) == "c0"


# ---------------------------------------------------------------------- several references

FIELDS = ("kind", "answers", "completion", "params")


@pytest.mark.parametrize(FIELDS, cases("several_answers", *FIELDS))
def test_of_several_references_any_is_right(kind, answers, completion, params):
    first, *others = answers
    component = {"kind": kind, "params": params or {}}
    problems = [Problem("p", "q", first, other_answers=tuple(others)), Problem("p", "q", first)]
    with Runner(rubric_of(component, limits=SINGLE)) as runner:
        samples = [ScoreRequest(problem, completion, 9) for problem in problems]
        both, alone = (each.components["c0"] for each in runner.score(samples))
    assert both.passed is True
    assert alone.passed is not True
    assert (both.value or 0) > (alone.value or 0)


def test_every_kind_that_compares_with_the_answer_has_a_case_of_several():
    comparing = {name for name, kind in KINDS.items() if kind.is_rule and kind.answers(kind.params.model_construct())}
    assert comparing - {param.values[0] for param in cases("several_answers", *FIELDS)} == set()


# ---------------------------------------------------------------------- references that cannot be read


@pytest.mark.parametrize(
    ("kind", "params", "answer", "meta", "match"),
    cases("unreadable_answers", "kind", "params", "answer", "meta", "match"),
)
def test_a_reference_that_its_kind_cannot_read_is_refused_with_row_and_reason(kind, params, answer, meta, match):
    rubric = rubric_of({"kind": kind, "params": params or {}})
    with pytest.raises(DataError) as caught:
        rubric.check_problems([Problem("row-17", "q", answer or "", meta or {})])
    assert "row-17" in str(caught.value)
    assert match in str(caught.value)


def test_all_are_counted_and_the_first_are_named():
    problems = [Problem(f"row-{n}", "q", "7" if n % 2 else "seven") for n in range(20)]
    with pytest.raises(DataError, match="10 of 20 problems have a reference") as caught:
        rubric_of({"kind": "numeric"}).check_problems(problems)
    assert [f"row-{n}:" in str(caught.value) for n in (0, 8, 10)] == [True, True, False]
    with pytest.raises(DataError, match="'seven' is not a number"):
        rubric_of({"kind": "numeric"}).check_problems([Problem("p", "q", "7", other_answers=("seven",))])


def test_unreadable_references_are_dropped_on_demand_unless_none_is_left():
    rubric = rubric_of({"kind": "math"})
    total = Problem("row-2", "q", r"\sum_{k=1}^{n} k^2")
    kept, unreadable = rubric.readable([SUM, total], drop=True)
    assert (kept, [row for row, _ in unreadable]) == ([SUM], ["row-2"])
    assert "cannot be read as mathematics" in unreadable[0][1]
    with pytest.raises(DataError, match=r"1 of 1 problems.*Choose another reward"):
        rubric.readable([total], drop=True)


def test_the_component_named_by_success_must_score_every_row():
    shaping = {"name": "shape", "kind": "length", "weight": 5}
    answer = {"name": "answer", "kind": "exact", "only": {"column": "source", "values": ["sums"]}}
    rubric = rubric_of(shaping, answer, success="answer")
    rubric.check_problems([SUM])
    with pytest.raises(DataError, match="no reward component is for the problem"):
        rubric.check_problems([SUM, CAPITAL])


def test_length_by_cosine_requires_what_its_judge_requires():
    params = {"shape": "cosine", "right_by": "exact", "right_params": {"column": "gold"}}
    assert rubric_of({"kind": "length", "params": params}).columns == {"gold": "c0"}
    assert rubric_of({"kind": "length", "params": {"shape": "cosine"}}).columns == {"answer": "c0"}
    assert rubric_of({"kind": "length"}).columns == {}


# ---------------------------------------------------------------------- prefill


@pytest.mark.parametrize(
    ("kind", "params", "prefill", "completion", "answer", "value"),
    cases("prefills", "kind", "params", "prefill", "completion", "answer", "value"),
)
def test_what_a_kind_sees_of_a_prefill(kind, params, prefill, completion, answer, value):
    component = {"kind": kind, "params": params or {}}
    with Runner(rubric_of(component, limits=SINGLE)) as runner:
        sample = ScoreRequest(Problem("p", "q", answer or ""), completion, prefill=prefill)
        score = runner.score([sample])[0].components["c0"]
    assert score.value == value, score
    seen = KINDS[kind].sees(sample, Rubric(runner.rubric.config).parts[0].params).completion != completion
    assert (f"scored after the prefill {prefill!r}" in score.detail) == seen


def test_a_person_s_verifier_is_given_prefill_and_all_answers(make):
    runner = make("def verify(sample):\n    return sample.prefill == '<think>' and sample.answers == ['a', 'b']")
    sample = ScoreRequest(Problem("p", "q", "a", other_answers=("b",)), "x", prefill="<think>")
    assert runner.score([sample])[0].reward == 1
