"""Canonical JSON: the examples of RFC 8785, what it cannot carry, and one spelling for each value."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.evidence.canonical import CanonicalError, canonical, parse
from tests.tables import cases


@pytest.mark.parametrize(("bits", "text"), cases("evidence/numbers", "bits", "text"))
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    """RFC 8785, appendix B."""
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


@pytest.mark.parametrize("content", cases("evidence/other_spellings", "content"))
def test_another_spelling_is_refused(content: str) -> None:
    with pytest.raises(CanonicalError):
        parse(content.encode())


def test_no_text_and_what_has_no_end_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CanonicalError):
        canonical(deep)
    for content in (b'"\x7f\xff"', '"é"'.encode("latin-1"), b"1" + b"0" * 5000, b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(CanonicalError):
            parse(content)


def test_a_key_given_twice_is_named() -> None:
    """Of many keys too: comparing each with all would take hours."""
    many = ",".join(f'"{number}":0' for number in range(100_000))
    for content, name in (('{"a":1,"a":1}', "a"), (f'{{{many},"99999":0}}', "99999")):
        with pytest.raises(CanonicalError, match=f"'{name}' is given twice"):
            parse(content.encode())


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
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
