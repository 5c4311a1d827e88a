"""The log's checkpoints and proofs of inclusion, read by an implementation of another's: sigstore-python's verifier of
Rekor, which shares no code with this project. It has no verifier of consistency proofs."""

from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sigstore._internal.merkle import verify_merkle_inclusion
from sigstore._internal.rekor.checkpoint import SignedCheckpoint, verify_checkpoint
from sigstore._internal.trust import Keyring
from sigstore.errors import VerificationError
from sigstore_models.common import v1 as common

from cohort.evidence import merkle
from cohort.evidence.keys import PublicKey
from tests.factories.small_cards import Log, card

SIZES = (1, 2, 3, 7, 8, 100)


def keyring(key: PublicKey) -> Any:
    der = Ed25519PublicKey.from_public_bytes(key.public).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Keyring([common.PublicKey(raw_bytes=b64encode(der), key_details=common.PublicKeyDetails.PKIX_ED25519)])


def as_entry(body: bytes, proof: merkle.Proof, key: PublicKey) -> Any:
    """A proof of ours as that library holds an entry of Rekor."""
    signed = SignedCheckpoint.from_text(proof.checkpoint).checkpoint
    inclusion = SimpleNamespace(
        log_index=proof.index,
        tree_size=signed.log_size,
        root_hash=bytes.fromhex(signed.log_hash),
        hashes=list(proof.path),
        checkpoint=SimpleNamespace(envelope=proof.checkpoint),
    )
    log_id = SimpleNamespace(key_id=bytes.fromhex(key.key_id))
    return SimpleNamespace(_inner=SimpleNamespace(inclusion_proof=inclusion, canonicalized_body=body, log_id=log_id))


def judge(body: bytes, proof: merkle.Proof, key: PublicKey) -> None:
    """Raises VerificationError unless that library takes the proof and its checkpoint."""
    entry = as_entry(body, proof, key)
    verify_merkle_inclusion(entry)
    verify_checkpoint(keyring(key), entry)


@pytest.mark.parametrize("size", SIZES)
def test_every_entry_of_a_log_is_in_it_by_their_verifier(size: int) -> None:
    log = Log(notes=size)
    for index, body in enumerate(log.bodies):
        text = merkle.write(index, log.nodes.inclusion(index, size), log.checkpoint())
        judge(body, merkle.parse(text), log.keys[0].public_key)


def test_a_card_s_proof_and_not_one_that_was_changed() -> None:
    log = Log(notes=11)
    files, key = card(log), log.keys[0].public_key
    body, proof = files["log-entry.json"], merkle.parse(files["proof.tlog-proof"].decode())
    judge(body, proof, key)
    other = bytes([proof.path[0][0] ^ 1]) + proof.path[0][1:]
    for changed_body, changed in (
        (body + b" ", proof),
        (body, merkle.parse(merkle.write(proof.index - 1, proof.path, proof.checkpoint))),
        (body, merkle.parse(merkle.write(proof.index, [other, *proof.path[1:]], proof.checkpoint))),
    ):
        with pytest.raises(VerificationError, match="inclusion proof"):
            judge(changed_body, changed, key)
    with pytest.raises(VerificationError, match="Signature not found"):
        judge(body, proof, Log("stranger").keys[0].public_key)
    text, _, signature = proof.checkpoint.rpartition("\n\n")
    forged = f"{text.replace('cohort.example', 'other.example')}\n\n{signature}"
    with pytest.raises(VerificationError, match="invalid signature"):
        judge(body, merkle.parse(merkle.write(proof.index, proof.path, forged)), key)
