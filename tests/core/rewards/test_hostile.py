"""What a policy may write to break a rule: no text takes more than linear time, memory or a fault of the rule."""

import re
import time

import pytest

from grpo_core.data import Problem
from grpo_core.rewards import KINDS
from grpo_core.rewards.base import ScoreRequest
from tests.core.rewards.scoring import scored
from tests.tables import cases

PIECES = [case.values[0] for case in cases("hostile_pieces", "text")]
RULES = cases("linear_rules", "kind", "params", "question", "reference", "meta")


def assert_linear(score, whole, make=str):
    """`score` of a text, wrapped by `make`, takes at most ten times what it takes on a quarter of it: linear is 4 times
    as long, quadratic 16 times. A tenth of a second of this process is little enough, whatever the quarter takes.
    Other work on the machine only adds to a time, so each is the least of three rounds, of up to ten while it fails."""
    long = short = float("inf")
    for number in range(1, 11):
        long = min(long, _seconds(score, make(whole)))
        if long <= 0.1:
            return
        short = min(short, _seconds(score, make(whole[: len(whole) // 4])))
        if number >= 3 and long <= 10 * short:
            return
    raise AssertionError((whole[:20], short, long))


def _seconds(score, text):
    """Processor time."""
    began = time.process_time()
    score(text)
    return time.process_time() - began


def test_every_kind_without_a_deadline_is_here():
    assert {case.values[0] for case in RULES} == {name for name, kind in KINDS.items() if kind.mode == "inline"}


@pytest.mark.parametrize("size", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "params", "question", "reference", "meta"), RULES)
def test_a_rule_without_a_deadline_is_linear(kind, params, question, reference, meta, size):
    rule = KINDS[kind]
    given = rule.params.model_validate(params)
    problem = Problem("p", question or "q", reference or "", meta or {})
    in_tags = params.get("extract") == "answer_tag" or params.get("part") == "think"
    for piece in PIECES:
        assert_linear(
            lambda text: rule.rule()(ScoreRequest(problem, text, len(text)), given),
            (piece * (size // len(piece) + 1))[:size],
            (lambda text: f"<think>{text}</think><answer>{text}</answer>") if in_tags else str,
        )


@pytest.mark.parametrize(
    ("kind", "params", "text"),
    [
        ("format", {}, "```" + "\n" * 20_000 + "x"),
        ("choice", {"extract": "whole", "column": "options", "inside": True}, "Answer" + "\n" * 100_000 + "?"),
        ("function_call", {}, "```" + "a" * 19_000),
        ("function_call", {}, "<tool_call>" * 1_800),
    ],
)
def test_a_rule_is_linear_in_a_text_made_for_it(kind, params, text):
    meta = {"form": {"json": {}}, "options": ["red apple", "green apple"], "calls": [{"name": "f", "arguments": {}}]}
    assert_linear(lambda text: scored(kind, text, "A", meta=meta, **params), text)
    assert scored(kind, text, "A", meta=meta, **params).value == 0


def test_a_quadratic_rule_is_found():
    with pytest.raises(AssertionError):
        assert_linear(re.compile(r"\s+x").search, " " * 20_000)


NESTED = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}


def test_json_that_is_none_or_too_deep_to_be_compared_earns_nothing():
    for completion in ("[" * 100_000, '{"a":' * 50_000, "9" * 5000, '"' + "\\u0000" * 9, "[" + "1," * 50_000):
        score = scored("json_schema", completion, json_schema=NESTED)
        assert (score.value, score.error) == (0, None)
    score = scored("json_schema", "[" * 900 + "]" * 900, json_schema=NESTED)
    assert (score.value, score.detail) == (0, "nested too deeply to be compared")


def test_a_schema_of_itself_is_an_error_and_a_text_on_which_a_pattern_runs_away_is_wrong():
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    score = scored("json_schema", "1", json_schema=endless)
    assert (score.value, score.error_class, "without end" in score.error) == (None, "sample", True)
    score = scored("regex", "a" * 5000, pattern="(?:(?:a{1,1000}){1,1000}){1,1000}b", seconds=0.2)
    assert (score.value, score.error, score.error_class) == (0.0, None, "timeout")
    assert "0.2 s on 5,000 characters" in score.detail
    assert len(scored("regex", "a" * 5000, pattern="a+").detail) == 200  # a long find is cut


def test_texts_that_are_too_long_to_be_compared():
    score = scored("similarity", "a" * 200_001, "a", extract="whole")
    assert (score.value, score.passed, score.error) == (0, False, None)
    score = scored("similarity", "a b", column="refs", extract="whole", meta={"refs": ["a" * 20_001]})
    assert (score.value, score.error_class) == (None, "sample")
