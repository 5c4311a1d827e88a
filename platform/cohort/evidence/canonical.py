"""Canonical JSON (RFC 8785): one spelling for each value, so that a digest of a value is a digest of its bytes."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

import rfc8785

LARGEST_INTEGER = 2**53 - 1
"""The largest whole number that every JSON reader takes without loss."""
_LONGEST_NUMBER = 400
"""Characters; no double has more digits in canonical form."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class CanonicalError(ValueError):
    """A value that canonical JSON cannot carry, or bytes that are not canonical JSON. The message names the place."""


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value (dict, list, tuple, str, int, float, bool, None).

    Raises CanonicalError for NaN, infinities, integers beyond ±(2^53 − 1), lone surrogates, keys that are not text,
    values of other types and values nested too deeply; the message names the path of the fault.
    """
    try:
        return rfc8785.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        try:
            fault = _fault(value, "")
        except RecursionError:
            fault = None
        raise CanonicalError(fault or f"the value cannot be written as canonical JSON: {_short(error)}") from None


def parse(content: bytes) -> Any:
    """The value of canonical bytes. Raises CanonicalError when they are not JSON, have a key twice, or are not exactly
    the canonical spelling of their value. A number that is whole and beyond 2^53 − 1 comes back as float."""
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=_fraction,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise CanonicalError("nested too deeply") from None
    except CanonicalError:
        raise
    except ValueError as error:
        raise CanonicalError(f"not JSON: {_short(error)}") from None
    if canonical(value) != content:
        raise CanonicalError("its bytes are not canonical JSON (RFC 8785)")
    return value


def dig(value: Any, *path: str) -> Any:
    """The value at `path`, or None where something on the way is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def sha256(content: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counted = Counter(name for name, _ in pairs)  # in one pass: there may be a million
        twice = next(name for name, times in counted.items() if times > 1)
        raise CanonicalError(f"the key {_shortened(ascii(twice))} is given twice")
    return fields


def _whole(digits: str) -> int | float:
    number = float(digits) if len(digits) <= _LONGEST_NUMBER else math.inf
    return int(digits) if abs(number) <= LARGEST_INTEGER else number


def _fraction(digits: str) -> float:
    return float(digits) if len(digits) <= _LONGEST_NUMBER else math.inf


def _refuse_constant(word: str) -> NoReturn:
    raise CanonicalError(f"{word} is not a number of JSON")


def _fault(value: Any, path: str) -> str | None:
    """The first place that canonical JSON cannot carry, in words."""
    where = path or "the value"
    match value:
        case None | bool():
            return None
        case str():
            return f"{where} holds half a surrogate pair" if _SURROGATE.search(value) else None
        case int():
            beyond = abs(value) > LARGEST_INTEGER
            return f"{where} is a whole number beyond ±(2^53 − 1); write it as text" if beyond else None
        case float():
            return None if math.isfinite(value) else f"{where} is {value}, which JSON has no number for; write null"
        case dict():
            for key in value:
                if not isinstance(key, str):
                    return f"{where} has the key {key!a}, which is not text"
                if _SURROGATE.search(key):
                    return f"{where} has the key {key!a}, which holds half a surrogate pair"
            return next((f for key, child in value.items() if (f := _fault(child, f"{path}.{key}".lstrip(".")))), None)
        case list() | tuple():
            return next((f for at, child in enumerate(value) if (f := _fault(child, f"{path}[{at}]"))), None)
        case _:
            return f"{where} is of type {type(value).__name__}, which JSON does not have"


def _short(error: Exception) -> str:
    return _shortened(str(error) or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
