"""Base64 (RFC 4648, section 4) with one spelling for each value: padded, no other characters, no spare bits set."""

import base64
import binascii


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode(text: str, length: int | None = None) -> bytes:
    """Raises ValueError for any other spelling, and when the data have not `length` bytes."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError(f"{text[:60]!a} is not base64") from None
    if encode(data) != text:
        raise ValueError(f"{text[:60]!a} is not base64 as it is written here: padded, without spare bits")
    if length is not None and len(data) != length:
        raise ValueError(f"{text[:60]!a} has {len(data)} bytes, not {length}")
    return data
