"""Values as text, between a solution's process, the tests' process and us: plain data alone, never pickled.

Part of the text of the programs that run inside the sandbox, so it imports the standard library only. JSON as it is for
null, booleans, numbers and text; all else is a list that begins with a tag. What is decoded is exactly of a built-in
type: no class of the solution's comes along, nor any of its methods.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing them would cost at every launch
    from collections.abc import Callable
    from typing import Any

LARGEST = 4 * 1024 * 1024
"""Bytes of one value as text."""

_WHOLE = 1 << 63
_MOST_BITS = 40_000
"""Of the larger part of a fraction: about 12,000 digits."""


def by_the_clock(seconds: float) -> float:
    """How long a child may take that has so many seconds of processor time; a busy machine makes it wait."""
    return 3 * seconds + 5


class Unsendable(Exception):
    """A value that is no plain data, or too large or too deep to be sent."""


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """`value` as JSON values. What is no plain data goes through `other`; without it, raises Unsendable."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_WHOLE < value < _WHOLE else ["i", format(value, "x")]
    if kind is float:
        return value if value - value == 0.0 else ["f", "nan" if value != value else "inf" if value > 0 else "-inf"]
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        tag = "l" if kind is list else "t" if kind is tuple else "s" if kind is set else "z"
        return [tag, [encode(item, other) for item in value]]
    if kind is dict:
        return ["d", [[encode(key, other), encode(entry, other)] for key, entry in value.items()]]
    if kind is bytes or kind is bytearray:
        return ["b" if kind is bytes else "a", value.hex()]
    if kind is complex:
        return ["c", encode(value.real), encode(value.imag)]
    return _encode_kin(value, kind, other)


def _encode_kin(value: Any, kind: type, other: Callable[[Any], Any] | None) -> Any:
    """Kinds of built-in types become these, so that a Counter or a named tuple is what Python holds it equal to."""
    module, name = kind.__module__, kind.__name__
    if kind is range:
        return ["r", value.start, value.stop, value.step]
    if (module, name) == ("collections", "deque"):
        return ["q", [encode(item, other) for item in value]]
    if (module, name) == ("decimal", "Decimal"):
        return ["D", str(value)]
    if (module, name) == ("fractions", "Fraction"):
        return ["F", encode(value.numerator), encode(value.denominator)]
    if module == "datetime" and name in ("date", "datetime", "time"):
        return ["T", name, value.isoformat()]
    if (module, name) == ("datetime", "timedelta"):
        return ["T", name, [value.days, value.seconds, value.microseconds]]
    if module == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), other)
    if kind is type and value in _types().values():
        return ["Y", value.__name__]
    for base in (dict, list, tuple, set, frozenset, str, int, float, bytes):
        if isinstance(value, base) and not isinstance(value, type):
            return encode(_as_base(value, base), other)
    if other is None:
        raise Unsendable(f"an object of the class {name}")
    return other(value)


def _as_base(value: Any, base: type) -> Any:
    if base is dict:
        return dict(dict.items(value))
    if base is str:
        return str.__str__(value)
    if base is int:
        return int.__add__(value, 0)
    if base is float:
        return float.__float__(value)
    return base(base.__iter__(value)) if base is not bytes else bytes(memoryview(value))  # type: ignore[attr-defined]


def decode(wire: Any, other: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that `encode` made text of, of exactly the built-in types. Raises ValueError for anything else; tags of
    no plain data go through `other` with the rest of the list."""
    if wire is None or type(wire) in (bool, str, int, float):
        return wire
    if type(wire) is not list or not wire or type(wire[0]) is not str:
        raise ValueError("no value")
    tag, *rest = wire
    if tag in ("l", "t", "s", "z", "q"):
        items = [decode(item, other) for item in rest[0]]
        if tag == "q":
            from collections import deque

            return deque(items)
        return items if tag == "l" else tuple(items) if tag == "t" else set(items) if tag == "s" else frozenset(items)
    if tag == "d":
        return {decode(key, other): decode(entry, other) for key, entry in rest[0]}
    if tag == "i":
        return int(rest[0], 16)
    if tag == "f":
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[rest[0]])
    if tag in ("b", "a"):
        return bytes.fromhex(rest[0]) if tag == "b" else bytearray.fromhex(rest[0])
    if tag == "c":
        return complex(float(decode(rest[0])), float(decode(rest[1])))
    if tag == "r":
        return range(int(rest[0]), int(rest[1]), int(rest[2]))
    if tag in ("D", "F", "T"):
        return _decode_rare(tag, rest)
    if tag == "Y" and rest[0] in _types():
        return _types()[rest[0]]
    if other is None:
        raise ValueError(f"no plain value: {tag[:20]!r}")
    return other(tag, rest)


def _types() -> dict[str, type]:
    """The types of plain data and Python's exceptions, by name: as an argument each is itself on the other side too."""
    import builtins

    plain = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, type(None))
    raised = (kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException))
    return {kind.__name__: kind for kind in (*plain, *raised)}


def _decode_rare(tag: str, rest: list[Any]) -> Any:
    import datetime
    from decimal import Decimal, InvalidOperation
    from fractions import Fraction

    if tag == "D":
        try:
            return Decimal(str(rest[0])[:10_000])
        except InvalidOperation as error:
            raise ValueError("no decimal number") from error
    if tag == "F":
        parts = [int(decode(part)) for part in rest[:2]]
        if max(abs(part) for part in parts).bit_length() > _MOST_BITS:  # their common divisor takes quadratic time
            raise ValueError("a fraction of too many digits")
        return Fraction(*parts)
    if rest[0] == "timedelta":
        return datetime.timedelta(*(int(part) for part in rest[1]))
    kinds: dict[str, Any] = {"date": datetime.date, "datetime": datetime.datetime, "time": datetime.time}
    return kinds[rest[0]].fromisoformat(str(rest[1]))


def as_text(wire: Any) -> bytes:
    """Raises Unsendable beyond LARGEST."""
    text = _text(wire).encode()
    if len(text) > LARGEST:
        raise Unsendable(f"a value of {len(text):,} bytes; at most {LARGEST:,} can be sent")
    return text


def _text(wire: Any) -> str:
    """JSON without the module json, whose import would cost at every launch."""
    from _json import encode_basestring_ascii

    if type(wire) is list:
        return "[" + ",".join([_text(item) for item in wire]) + "]"
    if type(wire) is str:
        return encode_basestring_ascii(wire)
    return {"None": "null", "True": "true", "False": "false"}.get(repr(wire)) or repr(wire)


def from_text(text: bytes) -> Any:
    """Raises ValueError for what is no JSON, or nested too deep, or too long."""
    if len(text) > LARGEST + 64 * 1024:
        raise ValueError("too long")
    import json

    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
