"""Rows as public sets publish them: each layout known by its fields, read into problems, and refused with the row."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.data import Problem, scan_problems
from grpo_core.data.layouts import LAYOUTS
from grpo_core.data.loaders import detect
from grpo_core.data.problem import Message
from grpo_core.errors import DataError
from grpo_core.specs.fields import DataColumns
from tests.tables import cases

from .rewards.scoring import rubric_of

Row = dict[str, Any]


def list_of(*rows: Row) -> io.BytesIO:
    return io.BytesIO(json.dumps(rows).encode())


@pytest.mark.parametrize(
    ("row", "columns", "layout", "problem"), cases("data/layouts", "row", "columns", "layout", "problem")
)
def test_each_published_layout_is_known_by_its_fields(row: Row, columns: Row | None, layout: str, problem: Row) -> None:
    chosen = DataColumns.model_validate(columns or {})
    assert detect(list_of(row), "auto", columns=chosen, source="x").reading.format == layout
    messages = tuple(Message(*turn) for turn in problem.pop("messages", ()))
    others = tuple(problem.pop("other_answers", ()))
    expected = Problem(**{"id": "row-1", **problem}, messages=messages, other_answers=others)
    for named in ("auto", layout):
        assert list(scan_problems(list_of(row), named, columns=chosen, source="x")) == [expected]


def test_the_docs_list_every_layout_as_it_is_declared() -> None:
    text = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    for name, layout in LAYOUTS.items():
        assert f"| `{name}` | {layout.title} | {layout.help} |\n" in text


def test_the_cases_cover_every_layout() -> None:
    assert {case.values[0] for case in cases("data/layouts", "layout", "row", "columns", "problem")} == set(LAYOUTS)


@pytest.mark.parametrize(
    ("rows", "format", "columns", "word"), cases("data/rows_refused", "rows", "format", "columns", "word")
)
def test_a_refusal_names_file_row_and_remedy(
    rows: list[Row], format: str | None, columns: Row | None, word: str
) -> None:
    chosen = DataColumns.model_validate(columns or {})
    with pytest.raises(DataError, match=rf"^data\.json, row {len(rows)}: ") as refused:
        list(scan_problems(list_of(*rows), format or "auto", columns=chosen, source="data.json"))
    assert refused.match(word)


def test_repeated_ids_can_be_replaced_by_numbers() -> None:
    rows = [{"id": "a", "prompt": "p", "answer": "1"}, {"id": "a", "prompt": "q", "answer": "2"}]
    with pytest.raises(DataError, match=r"row 2: the id 'a' .* row 1.*data\.columns\.id: ''"):
        list(scan_problems(list_of(*rows), "auto", source="x"))
    numbered = scan_problems(list_of(*rows), "auto", columns=DataColumns(id=""), source="x")
    assert [problem.id for problem in numbered] == ["row-1", "row-2"]


@pytest.mark.parametrize(
    ("kind", "params", "needed"),
    [
        ("numeric", {}, True),
        ("math", {}, True),
        ("exact", {}, True),
        ("exact", {"column": "gold"}, False),
        ("similarity", {}, True),
        ("choice", {}, True),
        ("refusal", {}, True),
        ("r1_format", {}, False),
        ("soft_overlong", {"max_tokens": 100, "buffer_tokens": 10}, False),
        ("length", {"shape": "cosine", "right_by": "numeric", "limit": 100}, True),
    ],
)
def test_rewards_that_compare_with_a_reference_refuse_problems_without(kind: str, params: Row, needed: bool) -> None:
    rubric = rubric_of({"name": "right", "kind": kind, "params": params})
    assert ("answer" in rubric.columns) is needed
    problems = list(scan_problems(list_of({"prompt": "p", "gold": "g"}), "auto", source="x"))
    if needed:
        with pytest.raises(DataError, match="problem row-1 has no 'answer', which the reward component 'right' reads"):
            rubric.check_problems(problems)
    else:
        rubric.check_problems(problems)


def test_published_code_sets_are_scored_by_their_own_tests() -> None:
    """HumanEval's and MBPP's rows as they are give the cases that the reward `code` runs."""
    from grpo_core.rewards.code.cases import ProgramCase, read_cases

    rows = {case.id: case.values[0] for case in cases("data/layouts", "row", "columns", "layout", "problem")}
    (human,) = scan_problems(list_of(rows["HumanEval"]), "auto", source="x")
    (given,) = read_cases(human).cases
    assert isinstance(given, ProgramCase)
    exec(human.prompt + human.meta["canonical_solution"] + given.text, {})
    with pytest.raises(AssertionError):
        exec(human.prompt + "    return 2\n" + given.text, {})
    (basic,) = scan_problems(list_of(rows["MBPP with setup"]), "auto", source="x")
    assert read_cases(basic).entry == "double"
