"""Problems whose answer is JSON: other ways to write the same value, and values that are another one or none."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from grpo_core.probe.cases.case import Case, ProbeClass
from grpo_core.probe.report import Family, Rule

Change = Callable[[Any, str], str | None]
"""(value, its text) → the value, or another one, as text."""


def _class(family: Family, name: str, title: str, change: Change, rule: Rule) -> ProbeClass:
    def made(case: Case) -> Iterator[str]:
        if case.subject != "json" or not case.gold:
            return
        if name == "json_other_value" and case.gold != case.problem.answer:
            return  # made of the schema: any other value that fits is as right
        text = change(json.loads(case.gold), case.gold)
        if text is not None and text != case.gold:
            yield case.write(text)

    return ProbeClass(name, title, "json", family, rule, made)


_right = partial(_class, "false_negative", rule="told")
_wrong = partial(_class, "false_positive", rule="some")


def _dumped(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _turned(value: Any, text: str) -> str | None:
    return _dumped(dict(reversed(value.items()))) if isinstance(value, dict) and len(value) > 1 else None


def _with(change: Callable[[dict[str, Any], str], None]) -> Change:
    """A change of the object's first field."""

    def changed(value: Any, text: str) -> str | None:
        if not isinstance(value, dict) or not value:
            return None
        other = copy.deepcopy(value)
        change(other, next(iter(other)))
        return None if other == value else _dumped(other)

    return changed


def _set(value: Callable[[Any], Any]) -> Change:
    return _with(lambda fields, name: fields.update({name: value(fields[name])}))


def _other_type(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else str(value) if not isinstance(value, str) else [value]


def _other_value(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return [*value, *value[:1]]
    return value


def _renamed(fields: dict[str, Any], name: str) -> None:
    fields[name + "_"] = fields.pop(name)


def _doubled(value: Any, text: str) -> str | None:
    if not isinstance(value, dict) or not value:
        return None
    return f"{_dumped(value)[:-1]}, {_dumped(next(iter(value)))}: null}}"


JSON_TEXTS = (
    _right("json_compact", "without spaces", lambda value, text: _dumped(value, separators=(",", ":"))),
    _right("json_indented", "over several lines", lambda value, text: _dumped(value, indent=2)),
    _right("json_key_order", "keys in another order", _turned),
    _right("json_escapes", "characters as \\u escapes", lambda value, text: json.dumps(value)),
    _right("json_fenced", "in a fenced block", lambda value, text: f"```json\n{text}\n```"),
    _wrong("json_key_missing", "without its first key", _with(lambda fields, name: fields.__delitem__(name))),
    _wrong("json_key_renamed", "its first key renamed", _with(_renamed)),
    _wrong("json_other_type", "a value of another type", _set(_other_type)),
    _wrong("json_null", "null for its first value", _set(lambda value: None)),
    _wrong("json_other_value", "another value of the same type", _set(_other_value)),
    _wrong("json_extra_key", "one key more", _with(lambda fields, name: fields.update(extra_key=1)), rule="told"),
    _wrong("json_key_twice", "its first key twice, null the second time", _doubled),
    _wrong("json_empty_object", "an empty object", lambda value, text: None if value == {} else "{}"),
    _wrong("json_empty_list", "an empty list", lambda value, text: None if value == [] else "[]"),
    _wrong("json_wrapped", "inside a list", lambda value, text: f"[{text}]"),
    _wrong("json_cut", "cut off before its end", lambda value, text: text[:-1]),
    _wrong("json_trailing_comma", "a comma before its end", lambda value, text: text[:-1] + "," + text[-1]),
    _wrong("json_single_quotes", "single quotation marks", lambda value, text: text.replace('"', "'")),
    _wrong("json_python", "as Python writes it", lambda value, text: repr(value), rule="told"),
    _wrong("json_text", "the object as a text", lambda value, text: json.dumps(text)),
)
