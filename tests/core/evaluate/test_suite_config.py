"""Suites in a run's config: what may stand there and what is refused, with its place."""

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from tests.tables import cases

MINE = {"name": "mine", "path": "mine.jsonl", "category": "performance", "scorer": {"kind": "exact"}}


def read(*suites, **more):
    return RunConfig.from_dict(
        {
            "model": {"path": "base"},
            "data": {"path": "train.jsonl"},
            "reward": {"components": [{"name": "right", "kind": "exact"}]},
            "eval": {"suites": list(suites), **more},
        }
    )


def test_a_suite_is_something_to_evaluate_and_survives_yaml():
    config = read(MINE, {"path": "builtin:format"})
    assert [suite.title for suite in config.eval.suites] == ["mine", "Starter: keeping to a form"]
    again = RunConfig.from_text(config.to_yaml())
    assert again == config
    assert again.digest() == config.digest()
    assert read({**MINE, "margin": 0.1}).digest() != read(MINE).digest()


@pytest.mark.parametrize("margin", [-0.01, 0.21, 1, float("inf"), float("nan"), "much"])
def test_a_margin_that_is_not_allowed_is_not_read_where_it_was_stored_either(margin):
    whole = read(MINE).to_dict()
    whole["eval"]["margin"] = margin
    with pytest.raises(ConfigError, match=r"eval\.margin"):
        RunConfig.from_whole(whole)


@pytest.mark.parametrize(("suites", "path", "match"), cases("config/suites_refused", "suites", "path", "match"))
def test_a_fault_is_reported_at_its_path(suites, path, match):
    with pytest.raises(ConfigError) as caught:
        read(*suites)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert match in problems[path]
