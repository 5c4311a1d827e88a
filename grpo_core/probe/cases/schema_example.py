"""A value that a JSON Schema accepts, for problems whose reward is a schema and whose answer is none."""

import json
from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.rewards.kinds.json_schema import JsonSchemaParams

_DEPTH = 12


def schema_example(problem: Problem, params: JsonSchemaParams) -> str | None:
    """One value as text; None where none is found by filling in what the schema says plainly. Whether it is right after
    all, scoring says."""
    schema: Any = problem.meta.get(params.column) if params.column else params.json_schema
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            return None
    try:
        return json.dumps(_example(schema, schema, 0), ensure_ascii=False) if isinstance(schema, dict) else None
    except (TypeError, ValueError, AttributeError, OverflowError):  # a problem's own schema that is none
        return None


def _example(schema: Any, whole: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEPTH:
        return {}
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("enum", "examples"):
        if isinstance(schema.get(word), list) and schema[word]:
            return schema[word][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            return _example({**schema, **schema[word][0], word: None}, whole, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        return _example(_at(whole, reference), whole, depth + 1)
    return _of_type(schema, whole, depth)


def _of_type(schema: dict[str, Any], whole: dict[str, Any], depth: int) -> Any:
    kinds = schema.get("type", "object")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    match kind:
        case "string":
            return "text".ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 10_000))]
        case "integer" | "number":
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            element = _example(schema.get("items", {}), whole, depth + 1)
            return [element] * max(int(schema.get("minItems", 1)), 1)
    fields = schema.get("properties", {})
    needed = schema.get("required", list(fields))
    return {name: _example(fields.get(name, {"type": "string"}), whole, depth + 1) for name in needed}


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    step = 1 if whole else 0.5
    if "exclusiveMinimum" in schema:
        return float(schema["exclusiveMinimum"]) + step if not whole else int(schema["exclusiveMinimum"]) + 1
    for word in ("minimum", "maximum"):
        if word in schema:
            bound: float = schema[word]
            return bound
    return int(schema["exclusiveMaximum"]) - 1 if "exclusiveMaximum" in schema else int(schema.get("multipleOf", 1))


def _at(whole: dict[str, Any], reference: str) -> Any:
    node: Any = whole
    for part in reference[2:].split("/"):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    return node
