"""Whether what a solution gave is what a case expects. Only plain data comes here, as text that `inside_values`
made inside the sandbox; no class of the solution's and none of its comparisons.

What was given is put into no set or dict that is larger than an expected one, so that keys chosen to collide cost
nothing; nor is a number written out that is long only as a Decimal's exponent.
"""

import json
from typing import Any

from grpo_core.rewards.code.inside_values import decode

_SHOWN = 120
_MOST_DIGITS = 400


def same_value(wire: Any, expected: Any, *, literal: bool, tolerance: float) -> bool:
    """`expected` is JSON, where a list also stands for a tuple, an iterator or a set; with `literal` it is a Python
    value and Python's `==` between plain values decides. Raises nothing: what is no value is not the same."""
    try:
        return _literal(wire, expected) if literal else _json(wire, expected, tolerance)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, ArithmeticError):
        return False


def _literal(wire: Any, expected: Any) -> bool:
    tag, items = _opened(wire)
    if isinstance(expected, list | tuple):
        if tag != ("l" if isinstance(expected, list) else "t") or len(items) != len(expected):
            return False
        return all(_literal(item, other) for item, other in zip(items, expected, strict=True))
    if isinstance(expected, set | frozenset):
        return tag in ("s", "z") and _same_members(items, expected)
    if isinstance(expected, dict):
        return tag == "d" and _same_items(items, expected, _literal, texts=False)
    if tag is not None and tag not in ("i", "f", "c", "b", "a", "D", "F"):
        return False
    value = decode(wire)
    return bool(value == expected)


def _json(wire: Any, expected: Any, tolerance: float) -> bool:
    tag, items = _opened(wire)
    if isinstance(expected, list):
        if tag == "r":
            return list(decode(wire)[: len(expected) + 1]) == expected
        if tag in ("s", "z"):
            return len(items) == len(expected) and sorted(map(_plain, items)) == sorted(map(json.dumps, expected))
        if tag not in ("l", "t", "q", "g") or len(items) != len(expected):
            return False
        return all(_json(item, other, tolerance) for item, other in zip(items, expected, strict=True))
    if isinstance(expected, dict):
        return tag == "d" and _same_items(
            items, expected, lambda item, other: _json(item, other, tolerance), texts=True
        )
    if expected is None or isinstance(expected, bool | str):
        return type(wire) is type(expected) and bool(wire == expected)
    if tag in ("i", "f", "D", "F") or type(wire) in (int, float):
        return _same_number(decode(wire), expected, tolerance)
    return False


def _opened(wire: Any) -> tuple[str | None, list[Any]]:
    """(tag, what it holds); no tag for JSON's own values."""
    if type(wire) is not list:
        return None, []
    if len(wire) == 2 and type(wire[0]) is str and type(wire[1]) is list:
        return wire[0], wire[1]
    return str(wire[0]), []


def _same_number(value: Any, expected: float, tolerance: float) -> bool:
    """`value` may be a Decimal, whose exponent may be any: as a Fraction it could be of a billion digits."""
    if value == expected:
        return True
    if isinstance(value, int) and not isinstance(expected, float):
        return False
    return close(float(value), float(expected), tolerance)


def close(value: float, expected: float, tolerance: float) -> bool:
    """Within the tolerance, as a difference or as a share of the larger one. Not a number is close to nothing."""
    return abs(value - expected) <= tolerance * max(1.0, abs(value), abs(expected)) and abs(value) != float("inf")


def _same_members(items: list[Any], expected: set[Any] | frozenset[Any]) -> bool:
    seen, most = set(), _largest_set(expected)
    for item in items:
        value = _hashable(item, most)
        if value not in expected:
            return False
        seen.add(value)  # it equals a member, so its hash is one that we chose
    return len(seen) == len(expected)


def _same_items(items: list[Any], expected: dict[Any, Any], same: Any, *, texts: bool) -> bool:
    """Keys of JSON are texts: there, a number or a word of JSON as key is taken as its text."""
    if len(items) != len(expected):
        return False
    seen, most = set(), _largest_set(expected)
    for wired, value in items:
        key = _hashable(wired, most)
        if texts and not isinstance(key, str):
            key = json.dumps(key) if key is None or isinstance(key, bool | int | float) else object()
        if key not in expected or not same(value, expected[key]):
            return False
        seen.add(key)
    return len(seen) == len(expected)


def _largest_set(values: Any) -> int:
    """Members of the largest set within these keys or members."""
    inner = [value for value in values if isinstance(value, tuple | frozenset)]
    sizes = [len(value) for value in inner if isinstance(value, frozenset)]
    return max([*sizes, *map(_largest_set, inner)], default=0)


def _hashable(wire: Any, most: int) -> Any:
    """The value. Raises ValueError where a set in it has more members than `most`: it is none of those expected."""
    waiting = [wire]
    while waiting:
        tag, items = _opened(waiting.pop())
        if tag in ("s", "z", "d") and len(items) > most:
            raise ValueError("a larger set than is expected")
        waiting += items if tag in ("s", "z", "t") else []
    return decode(wire)


def _plain(wire: Any) -> str:
    tag, items = _opened(wire)
    return json.dumps(wire) if tag is None else "[" + ", ".join(map(_plain, items)) + "]"


def same_text(given: str, expected: str, *, compare: str, tolerance: float) -> bool:
    """exact: line by line, but for white space at the ends of lines and empty lines at the end. tokens: word by word.
    numbers: word by word, where two numbers may differ by the tolerance."""
    if compare == "exact":
        return _lines(given) == _lines(expected)
    words, other = given.split(), expected.split()
    if compare == "tokens" or len(words) != len(other):
        return words == other
    return all(_same_word(word, expected_word, tolerance) for word, expected_word in zip(words, other, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_word(word: str, expected: str, tolerance: float) -> bool:
    if word == expected:
        return True
    if len(word) > _MOST_DIGITS or len(expected) > _MOST_DIGITS or "_" in word:
        return False
    try:
        return close(float(word), float(expected), tolerance)
    except ValueError:
        return False


def short_repr(wire: Any) -> str:
    """A value as Python writes it, cut when long."""
    text = _written(wire, _SHOWN)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _written(wire: Any, room: int) -> str:
    tag, items = _opened(wire)
    brackets = {"l": "[]", "t": "()", "s": "{}", "z": "{}", "d": "{}", "g": "<>", "q": "[]"}.get(tag or "")
    if brackets is None:
        return repr(wire) if tag is None else _rare(wire)
    parts: list[str] = []
    for item in items:
        if room <= 0:
            break
        pair = tag == "d" and type(item) is list and len(item) == 2
        parts.append(f"{_written(item[0], room)}: {_written(item[1], room)}" if pair else _written(item, room))
        room -= len(parts[-1]) + 2
    if tag == "s" and not items:
        return "set()"
    comma = "," if tag == "t" and len(items) == 1 else ""
    return brackets[0] + ", ".join(parts) + comma + brackets[1]


def _rare(wire: Any) -> str:
    try:
        return repr(decode(wire)) if wire[0] != "i" or len(wire[1]) < 1000 else "a whole number of many digits"
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return "something that is no value"
