"""The rule rewards against the cases worked by hand in tests/cases/rewards, a file for each kind.

A case is a completion with the `value` it earns, or `error`; what else it may say is in Case.
"""

import json
import math
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.errors import ConfigError
from grpo_core.rewards import KINDS, Rubric, Runner
from grpo_core.rewards.base import Unscored, extract_answer
from grpo_core.rewards.pool import Pool
from tests.tables import FOLDER, cases

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
        component = {"name": "a", "kind": case.kind or name, "params": case.params or {}}
        groups.setdefault(json.dumps(component), []).append((param.id, case))
    kinds = {json.loads(component)["kind"] for component in groups}
    wrong = []
    with closing(Pool([kind for kind in kinds if KINDS[kind].place == "aside"], workers=1, deadline=30)) as pool:
        for component, table in groups.items():
            with Runner(Rubric(RewardConfig.model_validate({"components": [json.loads(component)]}))) as runner:
                runner._pool = pool  # a process takes longer to start than to score
                scored = runner.score([case.sample() for _, case in table])
            for (number, case), result in zip(table, scored, strict=True):
                score = result.components["a"]
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
    config = RewardConfig.model_validate({"components": [{"name": "a", "kind": kind, "params": params}]})
    if path is None:
        Rubric(config)
        return
    with pytest.raises(ConfigError) as caught:
        Rubric(config)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert list(problems) == [f"reward.components.0.params.{path}".rstrip(".")]
    assert (match or "") in next(iter(problems.values()))


@pytest.mark.parametrize(
    ("kind", "params", "columns"),
    [
        ("choice", {"column": "choices"}, {"choices"}),
        ("choice", {}, set()),
        ("json_schema", {"column": "shape"}, {"shape"}),
        ("length", {"shape": "cosine", "right_by": "choice", "right_params": {"column": "choices"}}, {"choices"}),
        ("length", {}, set()),
        ("similarity", {"column": "refs"}, {"refs"}),
    ],
)
def test_the_columns_that_a_kind_reads(kind, params, columns):
    rubric = Rubric(RewardConfig.model_validate({"components": [{"name": "a", "kind": kind, "params": params}]}))
    assert rubric.columns == dict.fromkeys(columns, "a")


@pytest.mark.parametrize(("how", "completion", "found"), cases("extraction", "how", "completion", "found"))
def test_extraction(how, completion, found):
    assert extract_answer(completion, how) == found
