"""The salted hash that stands for a completion: one definition for the trainer that makes it and for its checkers.
Needs nothing but RFC 8785, so that a card can be checked anywhere."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import rfc8785

SALT_BYTES = 16
HASH_BYTES = 32

_HASHED = ("prompt", "completion")
"""Long texts: the leaf holds their SHA-256, so that it costs microseconds."""


def leaf(salt: bytes, content: Mapping[str, Any]) -> bytes:
    """SHA-256(0x00 ‖ salt ‖ RFC 8785 of `content` with its long texts as SHA-256 hex): 32 bytes, a leaf as in RFC 6962.

    `content` is what `records.commitments.sample_content` gives. Raises ValueError for a salt of another length than 16
    bytes, and for what canonical JSON cannot carry.
    """
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    if not all(isinstance(content[name], str) for name in _HASHED):
        raise ValueError("prompt and completion are text")
    hashed = {f"{name}_sha256": hashlib.sha256(content[name].encode()).hexdigest() for name in _HASHED}
    rest = {name: value for name, value in content.items() if name not in _HASHED}
    return hashlib.sha256(b"\x00" + salt + _canonical(rest | hashed)).digest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    """`rfc8785.dumps` of it. Every sample's content has the same names, so they are put in order once: the library
    takes longer over that than over the values."""
    members = [name_bytes + rfc8785.dumps(content[name]) for name, name_bytes in _in_order(tuple(content))]
    return b"{" + b",".join(members) + b"}"


@lru_cache(maxsize=16)
def _in_order(names: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """(name, its bytes up to the value), as RFC 8785 orders them: by their UTF-16 code units."""
    return [(name, rfc8785.dumps(name) + b":") for name in sorted(names, key=lambda name: name.encode("utf-16be"))]
