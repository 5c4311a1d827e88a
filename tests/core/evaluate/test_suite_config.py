"""Suites in a run's config: what may stand there and what is refused, with its place."""

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError

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


@pytest.mark.parametrize(
    ("suites", "place", "words"),
    [
        ([{**MINE, "name": "heldout"}], "eval.suites.0", "'heldout' is taken by the held-out problems"),
        ([MINE, MINE], "eval", "suite names must be unique; given twice: mine"),
        ([{**MINE, "name": "My suite"}], "eval.suites.0.name", "pattern"),
        ([{**MINE, "category": "charm"}], "eval.suites.0.category", "'performance', 'hallucination'"),
        ([{**MINE, "scorer": {"kind": "judge"}}], "eval.suites.0.scorer.kind", "'exact', 'number'"),
        ([{**MINE, "colour": "red"}], "eval.suites.0.colour", "allowed here: name, title, version"),
        ([{**MINE, "template": "no place"}], "eval.suites.0", "template must hold {prompt}"),
        ([{**MINE, "sha256": "abc"}], "eval.suites.0.sha256", "pattern"),
        ([{**MINE, "margin": 2}], "eval.suites.0.margin", "less than or equal to 1"),
        ([{"path": "builtin:luck"}], "eval.suites.0", "there is no starter suite 'luck'; there are format"),
        ([{"path": "mine.jsonl"}], "eval.suites.0.name", "is needed and not given"),
        (["builtin:format"], "eval.suites.0", "builtin:format"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(suites, place, words):
    with pytest.raises(ConfigError) as told:
        read(*suites)
    problems = {problem.path: problem.message for problem in told.value.problems}
    assert words in problems[place]
