"""Reads a score out of what a judge wrote: by a pattern, or a field of a JSON object; the last one counts.

The judge's text may hold anything that the graded completion talked it into, so patterns run against a clock.
"""

import json
import math
import re
from typing import Any

from grpo_core.records.types import ErrorClass

_PATTERN_SECONDS = 2.0
_OBJECTS = 300
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,4})?", re.IGNORECASE | re.ASCII)
_NO_NUMBERS = frozenset({"nan", "inf", "infinity"})


class NoScore(Exception):
    """The text holds no score; the message says why."""

    def __init__(self, message: str, error_class: ErrorClass = "parse") -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class


def by_pattern(text: str, pattern: str) -> str:
    """What the last match of `pattern` holds in its first group, or as a whole where it has none. Raises NoScore."""
    import regex

    try:
        matches = list(regex.finditer(pattern, text, timeout=_PATTERN_SECONDS))
    except TimeoutError:
        raise NoScore(
            f"score_pattern takes more than {_PATTERN_SECONDS:g} s on the judge's text; simplify it"
        ) from None
    if not matches:
        raise NoScore("no match of score_pattern in the judge's text")
    last = matches[-1]
    return (last[1] or "") if last.re.groups else last[0]


def by_field(text: str, field: str) -> Any:
    """The field of the last JSON object in the text that has it. Raises NoScore."""
    reader, place, found = json.JSONDecoder(), 0, []
    for _ in range(_OBJECTS):
        place = text.find("{", place)
        if place < 0:
            break
        try:
            value, place = reader.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
        else:
            found += [value[field]] if field in value else []
    if not found:
        raise NoScore(f"no JSON object with {field!r} in the judge's text")
    return found[-1]


def as_number(value: Any) -> float:
    """Raises NoScore for what is no finite number."""
    if isinstance(value, str):
        told = value.strip().rstrip(".,")
        if told.lower().lstrip("+-") in _NO_NUMBERS:
            raise NoScore(f"the score is {told[:20]}, which is not a finite number", "value")
        if not _NUMBER.fullmatch(told):
            raise NoScore(f"the score is not a number: {told[:60]!r}")
        value = float(told)
    if type(value) not in (int, float):
        raise NoScore(f"the score is not a number: {str(value)[:60]}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoScore("the score is not a finite number", "value")
    return number


def share(number: float, *, minimum: float, maximum: float) -> float:
    """The score as a share of the way from `minimum` to `maximum`. Raises NoScore outside them."""
    if not minimum <= number <= maximum:
        raise NoScore(f"the score {number:g} is not between {minimum:g} and {maximum:g}")
    return (number - minimum) / (maximum - minimum)
