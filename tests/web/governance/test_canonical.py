"""Canonical JSON: the examples of RFC 8785, what it cannot carry, and one spelling for each value."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.evidence.canonical import CanonicalError, canonical, parse

NUMBERS = (
    ("0000000000000000", "0"), ("8000000000000000", "0"), ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"), ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"), ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"), ("44b52d02c7e14af6", "1e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"), ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"), ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"), ("becbf647612f3696", "-0.0000033333333333333333"),
)  # fmt: skip
"""RFC 8785, appendix B."""


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == text.encode()
    assert parse(text.encode()) == value


def test_example_of_the_rfc() -> None:
    """Section 3.2.2 and 3.2.3."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_sorted_by_utf16() -> None:
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    assert list(json.loads(canonical(value)).values()) == [2, 4, 6, 7, 1, 5, 3]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "the value is nan"),
        ({"a": [1, math.inf]}, r"a\[1\] is inf"),
        ({"a": {"b": 2**53}}, r"a\.b is a whole number beyond"),
        (-(2**53), "beyond"),
        (10**400, "beyond"),
        (["\ud800"], r"\[0\] holds half a surrogate"),
        ({"\udc00": 1}, "half a surrogate"),
        ({"a": {1: 2}}, "a has the key 1, which is not text"),
        ({None: 1}, "not text"),
        ({"a": {1, 2}}, "a is of type set"),
        ({"a": b"x"}, "of type bytes"),
        pytest.param(object(), "the value is of type object", id="object"),
    ],
    ids=repr,
)
def test_what_json_cannot_carry_is_named_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(CanonicalError, match=words):
        canonical(value)


def test_nesting_beyond_measure() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CanonicalError):
        canonical(deep)
    with pytest.raises(CanonicalError):
        parse(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    "content",
    [b"", b" {}", b"{} ", b"{}\n", b'{"a": 1}', b'{"b":1,"a":2}', b'{"a":1,"a":1}', b'{"a":1,"a":2}', b"1.0",
     b"1e2", b"-0",
     b"01", b"+1", b"NaN", b"Infinity", b"-Infinity", b'"\\u0041"', b'"\\/"', b'"\x7f\xff"',
     b'"\\ud800"', b"\xef\xbb\xbf{}",
     b"9007199254740993", b"1" + b"0" * 5000, b"1e999", b"[1,]", b"nul", b'{"a":1}{"b":2}', b"0.10", b"1E5", b"'a'",
     '"é"'.encode("latin-1"), b'"\\u00e9"'],
)  # fmt: skip
def test_another_spelling_is_refused(content: bytes) -> None:
    with pytest.raises(CanonicalError):
        parse(content)


def test_a_key_given_twice_is_named() -> None:
    with pytest.raises(CanonicalError, match="'a' is given twice"):
        parse(b'{"a":1,"a":1}')


def test_the_last_of_many_keys_given_twice_is_found() -> None:
    """Comparing each with all would take hours."""
    many = ",".join(f'"{number}":0' for number in range(1_000_000))
    with pytest.raises(CanonicalError, match="'999999' is given twice"):
        parse(f'{{{many},"999999":0}}'.encode())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(values)
def test_there_and_back(value: Any) -> None:
    content = canonical(value)
    assert parse(content) == value
    assert canonical(parse(content)) == content
    assert json.loads(content, parse_int=float) == value


@given(values, st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_another_value(value: Any, place: int, bit: int) -> None:
    content = bytearray(canonical(value))
    content[place % len(content)] ^= 1 << bit
    try:
        found = parse(bytes(content))
    except CanonicalError:
        return
    assert canonical(found) == bytes(content) != canonical(value)
