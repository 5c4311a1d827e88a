"""The rule rewards against the cases worked by hand in tests/cases/rewards, a file for each kind.

A case is a completion with the `value` it earns, or `error`; what else it may say is in Case.
"""

import json
import math
import re
from contextlib import closing
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.errors import ConfigError
from grpo_core.rewards import KINDS, Runner
from grpo_core.rewards.base import Unscored, extract_answer
from grpo_core.rewards.pool import Pool
from grpo_core.rewards.tags import TagsParams, _entries, _in_order
from tests.tables import FOLDER, cases

from .scoring import rubric_of, scored, value

FILES = sorted(path.stem for path in (FOLDER / "rewards").glob("*.yaml"))


class Case(NamedTuple):
    completion: str
    value: float | str
    kind: str | None = None
    """The file's name where it is left out."""
    params: dict[str, Any] | None = None
    question: str | None = None
    reference: str | None = None
    meta: dict[str, Any] | None = None
    tokens: int | None = None
    passed: bool | None = None
    """Whether the value is 1, where it is left out."""
    detail: str | None = None
    match: str | None = None
    """Part of the detail, or of the error."""
    error: str | None = None
    """Class of the error; `sample` where it is left out."""
    steps: list[list[float]] | None = None
    """End and value of each."""

    def sample(self):
        problem = Problem("p", self.question or "", self.reference or "", self.meta or {})
        return Unscored(problem, self.completion, self.tokens)

    def fits(self, score):
        if self.value == "error":
            error = (score.value, score.error_class) == (None, self.error or "sample")
            return error and (self.match or "") in (score.error or "")
        assert not isinstance(self.value, str)
        steps = [[step.end, step.value] for step in score.steps or ()]
        return (
            score.value is not None
            and math.isclose(score.value, self.value, abs_tol=1e-12)
            and score.passed == (self.value == 1 if self.passed is None else self.passed)
            and self.detail in (None, score.detail)
            and (self.match or "") in score.detail
            and self.steps in (None, steps)
        )


@pytest.mark.parametrize("name", FILES)
def test_each_case_earns_its_value(name):
    groups: dict[str, list[tuple[str | None, Case]]] = {}
    for param in cases(f"rewards/{name}", *Case._fields):
        case = Case(*param.values)
        component = {"kind": case.kind or name, "params": case.params or {}}
        groups.setdefault(json.dumps(component), []).append((param.id, case))
    kinds = {json.loads(component)["kind"] for component in groups}
    wrong = []
    with closing(Pool([kind for kind in kinds if KINDS[kind].place == "aside"], workers=1, deadline=30)) as pool:
        for component, table in groups.items():
            with Runner(rubric_of(json.loads(component))) as runner:
                runner._pool = pool  # a process takes longer to start than to score
                results = runner.score([case.sample() for _, case in table])
            for (number, case), result in zip(table, results, strict=True):
                score = result.components["c0"]
                if not case.fits(score) or result.reward != score.value:
                    wrong.append((number, case, score))
    assert wrong == []


def test_every_rule_has_cases():
    rules = {name for name, kind in KINDS.items() if kind.place in ("here", "aside")}
    assert rules - set(FILES) == set()


DEEP = json.loads('{"items": ' * 50 + "{}" + "}" * 50)


@pytest.mark.parametrize(
    ("kind", "params", "path", "match"),
    [
        *cases("reward_params", "kind", "params", "path", "match"),
        pytest.param("python", {"source": "#" * 65_537}, "source", None, id="long source"),
        pytest.param("regex", {"pattern": "a" * 2000}, None, None, id="longest pattern"),
        pytest.param("regex", {"pattern": "a" * 2001}, "pattern", None, id="long pattern"),
        pytest.param("regex", {"pattern": "(" * 900 + ")" * 900}, "pattern", "RecursionError", id="deep pattern"),
        pytest.param("json_schema", {"json_schema": DEEP}, "json_schema", "more than 40 deep", id="deep schema"),
        pytest.param("json_schema", {"json_schema": {"enum": ["a" * 70_000]}}, "json_schema", "65,536", id="long one"),
    ],
)
def test_a_parameter_is_refused_by_its_path(kind, params, path, match):
    component = {"kind": kind, "params": params}
    if path is None:
        rubric_of(component)
        return
    with pytest.raises(ConfigError) as caught:
        rubric_of(component)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert list(problems) == [f"reward.components.0.params.{path}".rstrip(".")]
    assert (match or "") in next(iter(problems.values()))


def test_the_columns_that_a_kind_reads():
    def columns(kind, **params):
        return list(rubric_of({"kind": kind, "params": params}).columns)

    assert columns("choice", column="choices") == ["choices"]
    assert columns("choice") == columns("length") == []
    assert columns("json_schema", column="shape") == ["shape"]
    assert columns("length", shape="cosine", right_by="choice", right_params={"column": "choices"}) == ["choices"]
    assert columns("similarity", column="refs") == ["refs"]


@pytest.mark.parametrize(("how", "completion", "found"), cases("extraction", "how", "completion", "found"))
def test_extraction(how, completion, found):
    assert extract_answer(completion, how) == found


# ---------------------------------------------------------------------- equations and tags, whatever the text

SYMBOLS = "1 23 4.5 . , + - − – * ** / // × ÷ · = == < > : ( ) [ ] { } ^ % ! \\ \\times \\frac \\( \\\\ $ € x _ ²"
ODD = (" ", "\n", "\r", "\u2028", "\u202e", "\u200b", "\ufffd", "\0", "\ud800", "😀", "é", "__import__('os')")


@given(
    st.one_of(st.lists(st.sampled_from([*SYMBOLS.split(" "), *ODD]), max_size=40).map("".join), st.text(max_size=100))
)
def test_any_text_is_paid_a_share_and_its_steps_lie_in_it(text):
    result = scored("equations", text)
    steps = result.steps
    assert steps is not None
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert all(text[end - 1] in "0123456789" for end in ends)
    assert result.value == (sum(step.value for step in steps) / len(steps) if steps else 0)
    assert (result.passed, result.error) == (result.value == 1, None)


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 99),
    st.integers(-1, 1),
)
def test_what_python_says_of_whole_numbers(rest, first, off):
    left = f"{first}" + "".join(f" {operation} {number}" for operation, number in rest)
    assert value("equations", f"{left} = {eval(left) + off}") == float(off == 0)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 999))
def test_fractions_are_exact(above, below, more):
    whole = Fraction(above, below) * below + more
    assert value("equations", f"{above} / {below} * {below} + {more} = {whole}") == 1


@pytest.mark.parametrize(
    "piece", ["1+", "1 + 1 = 2\n", "1+1=", "** ", "**1", "(", "1.", "1,111", "-", "=", "\\", " ", "9"]
)
def test_long_text_of_one_kind_is_read_in_one_pass(piece):
    # A reader that went back over what it has read would need minutes to hours for 20,000 characters.
    text = piece * (20_000 // len(piece))
    result = scored("equations", text)
    assert len(result.steps or ()) == (text.count("\n") if "\n" in piece else 0)


@given(
    st.text("ab", max_size=8),
    st.lists(st.sampled_from(["a", "b", "a?", "b*", "a+", "b{2}", "a{1,2}"]), min_size=1, max_size=5),
)
def test_a_sequence_is_what_the_same_pattern_of_letters_is(names, sequence):
    entries = _entries(TagsParams(sequence=tuple(sequence)))
    assert _in_order(list(names), entries) == (re.fullmatch("".join(sequence), names) is not None)
