"""json_schema: the completion holds one JSON value, and it is as a JSON Schema wants it.

The schema is the reward's author's: its patterns and references can make a text slow, so this kind runs in a
subprocess. No schema is fetched from anywhere, and what a value says is not looked at beyond the schema.
"""

import json
import math
import re
from collections import Counter
from functools import lru_cache
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, JsonValue

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import (
    Column,
    Kind,
    Params,
    ScoreRequest,
    always,
    extract_answer,
    fenced_blocks,
    missing_answer,
    shown,
)

MAX_SCHEMA_CHARS = 65_536
MAX_DEPTH = 40

_OPENING = re.compile(r"```[A-Za-z]*")


class JsonSchemaParams(Params):
    json_schema: Annotated[dict[str, JsonValue], Field(default_factory=dict)]
    """What the value must be like, in JSON Schema (draft 2020-12). `$ref` may point into the schema itself only. Empty:
    any JSON value."""
    column: Column = ""
    """Field of the problem with its own schema, as an object or its text; then json_schema is left empty."""
    extract: Literal["fence", "answer_tag", "whole"] = "fence"
    """Where the value is: fence for the last code fence, or the whole completion where there is none; answer_tag
    `<answer>…</answer>`; whole for the completion itself, without a fence."""
    parses: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """What a JSON value earns that is not as the schema wants it."""


def faults(params: JsonSchemaParams) -> list[tuple[str, str]]:
    if params.column:
        return [("json_schema", "leave it empty when a column holds the schemas")] if params.json_schema else []
    fault = schema_fault(params.json_schema)
    return [("json_schema", fault)] if fault else []


def prepare() -> None:
    _validator("{}")


def score(sample: ScoreRequest, params: JsonSchemaParams) -> ComponentScore:
    """1 when the value is as the schema wants it, `parses` when it is JSON, else 0. Raises RewardError for a problem
    without a schema."""
    schema = _schema_of(sample.problem, params) if params.column else params.json_schema
    if params.extract == "fence":
        blocks = [lines for _, lines in fenced_blocks(sample.completion.split("\n"), _OPENING.fullmatch)]
        text: str | None = "\n".join(blocks[-1]) if blocks else sample.completion
    else:
        text = extract_answer(sample.completion, params.extract)
    if text is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer("answer_tag"))
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        detail = f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        return ComponentScore(value=0.0, passed=False, detail=detail)
    except (ValueError, RecursionError) as error:  # a number or a nesting that is too long, a name given twice
        return ComponentScore(value=0.0, passed=False, detail=shown(f"not JSON that can be taken: {error}"))
    try:
        fault = next(iter(_validator(json.dumps(schema)).iter_errors(value)), None)
    except RecursionError:
        if _depth(value) <= MAX_DEPTH:
            raise RewardError("the schema refers to itself without end") from None
        return ComponentScore(value=params.parses, passed=False, detail="nested too deeply to be compared")
    if fault is None:
        return ComponentScore(value=1.0, passed=True, detail=shown(json.dumps(value, ensure_ascii=False)))
    detail = f"{_place(fault.absolute_path)}: {fault.message}"
    return ComponentScore(value=params.parses, passed=False, detail=shown(detail))


def schema_fault(schema: Any) -> str:
    """What is wrong with a schema; empty when nothing is. Cheap: it is read as data, its size and depth are bounded."""
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, dict):
        return "must be an object"
    if _depth(schema) > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        return f"is longer than {MAX_SCHEMA_CHARS:,} characters"
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return shown(f"is no JSON Schema: {_place(error.absolute_path)}: {error.message}")
    if any(isinstance(name, str) for name in _all(schema, "$id")):
        return "has an $id; leave it out, nothing is fetched by it"
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in [*_all(schema, "$ref"), *_all(schema, "$dynamicRef")]:
        if isinstance(reference, str) and not reference.startswith("#"):
            return shown(
                f"refers to {reference!r}; a reference may only point into the schema itself, such as #/$defs/x"
            )
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except (Unresolvable, TypeError, ValueError):  # the last two: a step that its value cannot take
                return shown(f"refers to {reference!r}, which is not in it")
    return ""


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(json.loads(schema), registry=Registry())  # an empty one, which fetches nothing


def _schema_of(problem: Problem, params: JsonSchemaParams) -> dict[str, Any]:
    schema = problem.meta.get(params.column)
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise RewardError(f"problem {problem.id}: {params.column!r} is no JSON: {shown(schema[:80])}") from None
    if fault := schema_fault(schema):
        raise RewardError(f"problem {problem.id}: {params.column!r} {fault}")
    assert isinstance(schema, dict)  # schema_fault says so
    return schema


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {shown(twice)!r} is given twice")
    return fields


def _number(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{shown(text)} is too large a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _place(path: Any) -> str:
    """The path to a part of a value, such as items[2].name."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps.lstrip(".") or "the value"


def _depth(value: Any) -> int:
    """Of nesting, by layers instead of by calls, so that no depth is too much for it."""
    depth, layer = 0, [value]
    while layer and depth <= MAX_DEPTH:
        layer = [inner for node in layer for inner in _inside(node)]
        depth += 1
    return depth


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _all(value: Any, word: str) -> list[Any]:
    """Values of all fields of that name, however deep."""
    mine = [value[word]] if isinstance(value, dict) and word in value else []
    return mine + [field_value for inner in _inside(value) for field_value in _all(inner, word)]


SPEC = Kind(
    "json_schema",
    JsonSchemaParams,
    "one JSON value, as a JSON Schema wants it",
    "subprocess",
    check=faults,
    reads_prefill=always,
)
