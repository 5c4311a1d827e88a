"""Function calls written out in a completion: read, never run.

Read are JSON (`{"name": …, "arguments": {…}}`, one or a list, also in `<tool_call>` tags) and Python's form
(`[weather(city="Paris")]`), each bare or in a code fence. What is not wholly one of these is no call.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CHARS = 20_000
"""A longer answer is not read: Python's parser takes memory many times the text."""
MAX_DEPTH = 50

_FENCE = re.compile(r"```[a-z_]*+\n?+(.*?)```", re.DOTALL)
_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was written."""

    name: str
    arguments: Mapping[str, Any]


def calls_in(completion: str, functions: Sequence[Mapping[str, Any]] = ()) -> list[Call]:
    """The calls that the completion holds, in order; empty when it holds none. Arguments without a name get those of
    the function's parameters, in order, where `functions` lists them."""
    text = completion.strip()
    if len(text) > MAX_CHARS or _depth(text) > MAX_DEPTH:
        return []
    parts = [part.partition("</tool_call>") for part in text.split("<tool_call>")[1:]]
    if tagged := [inside for inside, end, _ in parts if end]:
        return [call for part in tagged for call in _read(part.strip(), functions)]
    return next((calls for part in _candidates(text) if (calls := _read(part, functions))), [])


def _candidates(text: str) -> Iterator[str]:
    """Parts that may be calls: a code fence, all of the text, what is between the outermost brackets, the last line."""
    yield from (part.strip() for part in _FENCE.findall(text))
    yield text
    for opening, closing in ("[]", "{}"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            yield text[start : end + 1]
    yield text.rpartition("\n")[2].strip()


def _read(text: str, functions: Sequence[Mapping[str, Any]]) -> list[Call]:
    try:
        return _from_json(json.loads(text))
    except (ValueError, RecursionError):
        return _from_python(text, functions)


def _from_json(value: Any) -> list[Call]:
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            return []
        if isinstance(entry.get("function"), dict):  # as in OpenAI's messages
            entry = entry["function"]
        name, arguments = entry.get("name"), entry.get("arguments", entry.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return []
        if name is None and len(entry) == 1:  # {"weather": {"city": "Paris"}}
            ((name, arguments),) = entry.items()
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return []
        calls.append(Call(name, arguments))
    return calls


def _from_python(text: str, functions: Sequence[Mapping[str, Any]]) -> list[Call]:
    try:
        body = ast.parse(text, mode="eval").body
        nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        return [_call(node, functions) for node in nodes]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # TypeError: {[1]: 2}
        return []


def _call(node: ast.expr, functions: Sequence[Mapping[str, Any]]) -> Call:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = _dotted(node.func)
    parameters = next((_parameters(function) for function in functions if same_name(function["name"], name)), [])
    if len(node.args) > len(parameters):
        raise ValueError("more arguments than parameters")
    arguments = {key: _value(value) for key, value in zip(parameters, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("an argument without a name, or given twice")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(name, arguments)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError("not a function's name")


def _value(node: ast.expr) -> Any:
    """A literal; JSON's true, false and null are taken too."""
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("not a literal")
        return {ast.literal_eval(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("not a value that JSON has")
    return value


def _parameters(function: Mapping[str, Any]) -> list[str]:
    return list((function.get("parameters") or {}).get("properties") or {})


def same_name(name: str, other: str) -> bool:
    """`math.add` and `math_add` are the same: some chat formats allow no dots."""
    return name.replace(".", "_") == other.replace(".", "_")


def _depth(text: str) -> int:
    """How deep brackets and signs nest at most, strings taken for text: an upper bound."""
    deepest = depth = signs = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        signs = signs + 1 if char in "-+~" else 0
        deepest = max(deepest, depth, signs)
    return deepest
