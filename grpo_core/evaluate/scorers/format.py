"""format: the completion has the form asked for: a pattern, or the shape of a JSON value. What it says is not looked
at.

`target` is `{"regex": …}`, which must match the whole completion (white space at the ends left out), or `{"json": …}`
with a small part of JSON Schema: type, required, properties, additionalProperties: false, enum, items, minItems,
maxItems. Patterns run with a time limit: they come from a suite's author, the text from a model.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import regex  # has a time limit, which re has not
from pydantic import Field

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers.base import Params, Score, shown
from grpo_core.rewards.base import extract_answer

VERSION = 1
MAX_PATTERN_CHARS = 1000
MAX_DEPTH = 20

_OPENING = re.compile(r"```[a-z]*")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_WORDS = {
    "type": str,
    "required": list,
    "properties": dict,
    "additionalProperties": bool,
    "enum": list,
    "items": dict,
    "minItems": int,
    "maxItems": int,
}


class FormatParams(Params):
    answer_tag: bool = False
    """Look only at what the last `<answer>…</answer>` holds."""
    fence: bool = True
    """Take JSON that stands in a code fence; off asks for the bare value."""
    seconds: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Longest time for one pattern; beyond it the item counts as an error."""


def fault(item: SuiteItem, params: FormatParams) -> str | None:
    target = item.target
    if not isinstance(target, dict) or len(target) != 1 or next(iter(target)) not in ("regex", "json"):
        return '\'target\' must be {"regex": "…"} or {"json": {…}}'
    if "json" in target:
        return _schema_fault(target["json"], "json")
    if not isinstance(pattern := target["regex"], str) or not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        return f"'regex' must be a text of 1 to {MAX_PATTERN_CHARS} characters"
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        return f"'regex' is no pattern: {error}"
    return None


def score(item: SuiteItem, completion: str, params: FormatParams) -> Score:
    """1 when the form is right, else 0. Raises TimeoutError for a pattern that takes too long."""
    text: str | None = completion
    if params.answer_tag and (text := extract_answer(completion, "answer_tag")) is None:
        return Score(0.0, "no <answer>…</answer>")
    assert text is not None
    if "regex" in item.target:
        matched = regex.fullmatch(item.target["regex"], text.strip(), timeout=params.seconds)
        return Score(float(matched is not None), "" if matched else "does not match the pattern")
    try:
        value = json.loads(_unfenced(text) if params.fence else text)
    except (ValueError, RecursionError) as error:
        return Score(0.0, shown(f"not JSON: {error}"))
    wrong = _unlike(value, item.target["json"], "the value")
    return Score(float(wrong is None), shown(wrong or ""))


def _unfenced(text: str) -> str:
    """What stands in the code fence that the text is; the text itself where it is none. Line by line, because a pattern
    with white space on either side takes cubic time on empty lines, which a broken policy writes by the thousand."""
    opening, _, rest = text.strip().partition("\n")
    body, newline, closing = rest.rpartition("\n")
    is_fence = newline and closing.strip() == "```" and _OPENING.fullmatch(opening.rstrip())
    return body if is_fence else text


def _schema_fault(schema: Any, where: str, depth: int = 0) -> str | None:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return f"{where!r} must be an object of {', '.join(_WORDS)}, at most {MAX_DEPTH} deep"
    for word, value in schema.items():
        if word not in _WORDS:
            return f"{where!r} holds {word!r}; known are {', '.join(_WORDS)}"
        if not isinstance(value, _WORDS[word]) or (_WORDS[word] is int and isinstance(value, bool)):
            return f"'{where}.{word}' is of the wrong type; expected {_WORDS[word].__name__}"
    if schema.get("type", "object") not in _TYPES:
        return f"'{where}.type' is {schema['type']!r}; expected one of {', '.join(_TYPES)}"
    if not all(isinstance(name, str) for name in schema.get("required", [])):
        return f"'{where}.required' must be a list of names"
    inside = {f"{where}.properties.{name}": one for name, one in schema.get("properties", {}).items()}
    if "items" in schema:
        inside[f"{where}.items"] = schema["items"]
    return next((found for path, one in inside.items() if (found := _schema_fault(one, path, depth + 1))), None)


def _is(value: Any, kind: str) -> bool:
    """Python's True is an int, JSON's true is no number."""
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _unlike(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    """The first way in which the value is not as the schema wants it; None when it is."""
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        return f"{where} is no {kind}"
    if "enum" in schema and not any(type(one) is type(value) and one == value for one in schema["enum"]):
        return f"{where} is none of the allowed values"
    if isinstance(value, dict):
        if missing := [name for name in schema.get("required", []) if name not in value]:
            return f"{where} has no {missing[0]!r}"
        known = schema.get("properties", {})
        if schema.get("additionalProperties") is False and (more := [name for name in value if name not in known]):
            return f"{where} has {more[0]!r}, which was not asked for"
        for name, inner in known.items():
            if name in value and (wrong := _unlike(value[name], inner, f"{where}'s {name!r}")):
                return wrong
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
            return f"{where} has {len(value)} entries"
        inner = schema.get("items", {})
        return next((wrong for one in value if (wrong := _unlike(one, inner, f"an entry of {where}"))), None)
    return None
