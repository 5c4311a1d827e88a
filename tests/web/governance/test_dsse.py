"""Envelopes: verified by securesystemslib as they are, and refused when any byte is another."""

import json

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from cohort.evidence import dsse
from cohort.evidence.canonical import canonical
from tests.web.governance.card_made import key

SIGNER, OTHER = key("one"), key("two")
PAYLOAD = dsse.statement({"b.txt": "1" * 64, "a.txt": "2" * 64}, dsse.PREDICATE_TYPE, {"seal": "x −"})
ENVELOPE = dsse.envelope(PAYLOAD, dsse.PAYLOAD_TYPE, SIGNER)


def foreign(public: bytes, key_id: str) -> SSlibKey:
    return SSlibKey(key_id, "ed25519", "ed25519", {"public": public.hex()})


def test_another_implementation_verifies_it() -> None:
    envelope = Envelope.from_dict(json.loads(ENVELOPE))
    assert envelope.payload == PAYLOAD
    assert envelope.verify([foreign(SIGNER.public, SIGNER.key_id)], 1)
    with pytest.raises(VerificationError):
        envelope.verify([foreign(OTHER.public, SIGNER.key_id)], 1)


def test_one_that_another_implementation_signed_is_opened() -> None:
    signer = CryptoSigner.generate_ed25519()
    made = Envelope(PAYLOAD, dsse.PAYLOAD_TYPE, {})
    made.sign(signer)
    (signature,) = made.to_dict()["signatures"]
    public = type(SIGNER.public_key)("other.example", bytes.fromhex(signer.public_key.keyval["public"]))
    content = canonical({**made.to_dict(), "signatures": [{"keyid": public.key_id, "sig": signature["sig"]}]})
    assert dsse.opened(content, [public]).payload == PAYLOAD


def test_encoding_of_the_specification() -> None:
    """protocol.md: DSSEv1 29 http://example.com/HelloWorld 11 hello world"""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.encoded(b"hello world", "http://example.com/HelloWorld") == expected


def test_the_statement_is_in_totos() -> None:
    statement = json.loads(PAYLOAD)
    assert statement == {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:cohort:record:2",
        "predicate": {"seal": "x −"},
        "subject": [
            {"name": "a.txt", "digest": {"sha256": "2" * 64}},
            {"name": "b.txt", "digest": {"sha256": "1" * 64}},
        ],
    }


def test_opened_by_its_key_only() -> None:
    opened = dsse.opened(ENVELOPE, [OTHER.public_key, SIGNER.public_key])
    assert (opened.payload, opened.payload_type, opened.key) == (PAYLOAD, dsse.PAYLOAD_TYPE, SIGNER.public_key)
    with pytest.raises(dsse.EnvelopeError, match="is not known here"):
        dsse.opened(ENVELOPE, [OTHER.public_key])
    with pytest.raises(dsse.EnvelopeError, match="is not known here"):
        dsse.opened(ENVELOPE, [])


def test_every_byte_of_an_envelope_matters() -> None:
    for place in range(len(ENVELOPE)):
        for bit in (0x01, 0x02, 0x20, 0x80):
            bent = bytearray(ENVELOPE)
            bent[place] ^= bit
            with pytest.raises(dsse.EnvelopeError):
                dsse.opened(bytes(bent), [SIGNER.public_key])


@pytest.mark.parametrize(
    "value",
    [{}, [], None, "x", {"payload": "", "payloadType": "", "signatures": []},
     {"payload": "=", "payloadType": "t", "signatures": [{"keyid": SIGNER.key_id, "sig": ""}]},
     {"payload": 1, "payloadType": "t", "signatures": [{"keyid": SIGNER.key_id, "sig": ""}]},
     {"payload": "", "payloadType": "t", "signatures": [{"keyid": SIGNER.key_id, "sig": "AA"}]}],
)  # fmt: skip
def test_what_is_no_envelope(value: object) -> None:
    with pytest.raises(dsse.EnvelopeError):
        dsse.opened(canonical(value), [SIGNER.public_key])


def test_nothing_stands_beside_what_is_signed() -> None:
    value = json.loads(ENVELOPE)
    for changed in (
        {**value, "more": 1},
        {**value, "signatures": value["signatures"] * 2},
        {**value, "signatures": [{**value["signatures"][0], "more": 1}]},
    ):
        with pytest.raises(dsse.EnvelopeError):
            dsse.opened(canonical(changed), [SIGNER.public_key])
    with pytest.raises(dsse.EnvelopeError, match="canonical"):
        dsse.opened(json.dumps(value).encode(), [SIGNER.public_key])


def test_the_type_is_signed_too() -> None:
    value = json.loads(ENVELOPE) | {"payloadType": "text/plain"}
    with pytest.raises(dsse.EnvelopeError, match="does not fit"):
        dsse.opened(canonical(value), [SIGNER.public_key])
