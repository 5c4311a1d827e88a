"""DSSE envelopes (github.com/secure-systems-lab/dsse, v1): exact bytes with their type, signed.

An envelope here is canonical JSON with one signature, so that none of its bytes can change unnoticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.evidence.canonical import CanonicalError, canonical, parse
from cohort.evidence.keys import PublicKey, SigningKey, decode, encode


class EnvelopeError(ValueError):
    """Bytes that are no envelope, or one that no known key signed."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope as it is written; nothing of it is checked yet."""

    payload: bytes
    payload_type: str
    key_id: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    payload: bytes
    payload_type: str
    key: PublicKey
    """The one of the keys given that signed."""


def encoded(payload: bytes, payload_type: str) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, payload_type: str, key: SigningKey) -> bytes:
    """Canonical JSON of the envelope, signed by `key`."""
    signature = {"keyid": key.key_id, "sig": encode(key.sign(encoded(payload, payload_type)))}
    return canonical({"payload": encode(payload), "payloadType": payload_type, "signatures": [signature]})


def parsed(content: bytes) -> Envelope:
    """Raises EnvelopeError. The signature is not checked."""
    try:
        match parse(content):
            case {
                "payload": str(payload),
                "payloadType": str(kind),
                "signatures": [{"keyid": str(key_id), "sig": str(signature), **others}],
                **more,
            } if not others and not more:
                return Envelope(decode(payload), kind, key_id, decode(signature))
    except CanonicalError as error:
        raise EnvelopeError(str(error)) from None
    except ValueError as error:
        raise EnvelopeError(f"is no envelope: {error}") from None
    raise EnvelopeError("is no envelope of a payload, its type and one signature")


def opened(content: bytes, keys: Sequence[PublicKey]) -> Opened:
    """The payload, when one of `keys` signed it. Raises EnvelopeError."""
    signed = parsed(content)
    key = next((key for key in keys if key.key_id == signed.key_id), None)
    if key is None:
        raise EnvelopeError(f"is signed by the key {signed.key_id!a}, which is not known here")
    if not key.verify(signed.signature, encoded(signed.payload, signed.payload_type)):
        raise EnvelopeError(f"its signature by {key.name!a} ({key.key_id}) does not fit its payload")
    return Opened(signed.payload, signed.payload_type, key)


def statement(subjects: dict[str, str], predicate_type: str, predicate: dict[str, Any]) -> bytes:
    """Canonical bytes of an in-toto Statement v1; `subjects` maps names to sha256 in hex."""
    listed = [{"digest": {"sha256": subjects[name]}, "name": name} for name in sorted(subjects)]
    return canonical({"_type": STATEMENT, "predicate": predicate, "predicateType": predicate_type, "subject": listed})


STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:cohort:record:2"
