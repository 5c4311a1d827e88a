"""Envelopes: verified by securesystemslib as they are, and refused when any byte is another."""

import json
from typing import Any

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from cohort.evidence import dsse
from cohort.evidence.canonical import canonical
from tests.factories.small_cards import key

SIGNER, OTHER = key("one"), key("two")
PAYLOAD = dsse.statement({"b.txt": "1" * 64, "a.txt": "2" * 64}, dsse.PREDICATE_TYPE, {"seal": "x −"})
ENVELOPE = dsse.envelope(PAYLOAD, dsse.PAYLOAD_TYPE, SIGNER)
VALUE = json.loads(ENVELOPE)


def foreign(public: bytes) -> SSlibKey:
    return SSlibKey(SIGNER.key_id, "ed25519", "ed25519", {"public": public.hex()})


def test_another_implementation_verifies_it() -> None:
    envelope = Envelope.from_dict(json.loads(ENVELOPE))
    assert envelope.payload == PAYLOAD
    assert envelope.verify([foreign(SIGNER.public_key.public)], 1)
    with pytest.raises(VerificationError):
        envelope.verify([foreign(OTHER.public_key.public)], 1)


def test_one_that_another_implementation_signed_is_opened() -> None:
    signer = CryptoSigner.generate_ed25519()
    made = Envelope(PAYLOAD, dsse.PAYLOAD_TYPE, {})
    made.sign(signer)
    (signature,) = made.to_dict()["signatures"]
    public = type(SIGNER.public_key)("other.example", bytes.fromhex(signer.public_key.keyval["public"]))
    content = canonical({**made.to_dict(), "signatures": [{"keyid": public.key_id, "sig": signature["sig"]}]})
    assert dsse.opened(content, [public]).payload == PAYLOAD


def test_encoding_and_statement_of_the_specifications() -> None:
    """DSSE's protocol.md: DSSEv1 29 http://example.com/HelloWorld 11 hello world; the statement is in-toto's."""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.encoded(b"hello world", "http://example.com/HelloWorld") == expected
    assert json.loads(PAYLOAD) == {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:cohort:record:2",
        "subject": [
            {"name": name, "digest": {"sha256": digest * 64}} for name, digest in (("a.txt", "2"), ("b.txt", "1"))
        ],
        "predicate": {"seal": "x −"},
    }


def test_opened_by_its_key_only() -> None:
    opened = dsse.opened(ENVELOPE, [OTHER.public_key, SIGNER.public_key])
    assert (opened.payload, opened.payload_type, opened.key) == (PAYLOAD, dsse.PAYLOAD_TYPE, SIGNER.public_key)
    for known in ([OTHER.public_key], []):
        with pytest.raises(dsse.EnvelopeError, match="is not known here"):
            dsse.opened(ENVELOPE, known)


def signed(**changed: Any) -> dict[str, Any]:
    signature = {"keyid": SIGNER.key_id, "sig": ""}
    return {"payload": "", "payloadType": "t", "signatures": [signature], **changed}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "no envelope"),
        ("x", "no envelope"),
        (signed(signatures=[]), "no envelope"),
        (signed(payload="="), "not base64"),
        (signed(payload=1), "no envelope"),
        (signed(signatures=[{"keyid": SIGNER.key_id, "sig": "AA"}]), "not base64"),
        ({**VALUE, "more": 1}, "no envelope"),
        ({**VALUE, "signatures": VALUE["signatures"] * 2}, "no envelope"),
        ({**VALUE, "signatures": [{**VALUE["signatures"][0], "more": 1}]}, "no envelope"),
        ({**VALUE, "payloadType": "text/plain"}, "does not fit"),
    ],
)
def test_what_is_no_envelope_or_has_more_beside_what_is_signed(value: object, said: str) -> None:
    with pytest.raises(dsse.EnvelopeError, match=said):
        dsse.opened(canonical(value), [SIGNER.public_key])


def test_another_spelling_is_refused() -> None:
    with pytest.raises(dsse.EnvelopeError, match="canonical"):
        dsse.opened(json.dumps(VALUE).encode(), [SIGNER.public_key])
