"""The log's keys, checkpoints and proofs, read by implementations of others that share no code with this project:
sigstore-python's verifier of Rekor, and for keys as C2SP writes them and for consistency proofs, which that has not,
tlog-scales, which monitors of Sigsum's logs are made of."""

import json
from base64 import b64decode, b64encode
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
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint, ConsistencyProof, ConsistencyProofInvalid

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


# ---------------------------------------------------------------------- consistency

GROWN = 70
"""Leaves: past a power of 2, so that every shape of proof between two sizes occurs."""


def test_every_size_of_a_log_continues_every_earlier_one_by_their_verifier() -> None:
    nodes = Log(notes=GROWN).nodes
    for new in range(GROWN + 1):
        for old in range(new + 1):
            proof = ConsistencyProof(old, new, nodes.consistency(old, new))
            proof.check(nodes.root(old), nodes.root(new))


def test_a_card_s_log_continues_an_older_card_s_and_not_one_that_was_changed() -> None:
    log = Log(notes=11)
    before = card(log)
    for number in range(9):
        log.note(f"since {number}")
    log.rotate("second")
    after = card(log)
    older, newer = (
        Checkpoint.from_text(merkle.parse(files["proof.tlog-proof"].decode()).checkpoint) for files in (before, after)
    )
    first, second = map(Vkey.from_string, json.loads(after["keys.json"])["keys"])
    older.verify(first)
    newer.verify(second)
    with pytest.raises(RuntimeError, match="no signature matched"):
        newer.verify(first)
    stored = json.loads(after["consistency.json"])["from"][str(older.size)]
    path = [b64decode(digest) for digest in stored]
    ConsistencyProof(older.size, newer.size, path).check(older.root_hash, newer.root_hash)
    for hashes in ([bytes(32), *path[1:]], path[:-1], [*path, bytes(32)], path[::-1]):
        with pytest.raises(ConsistencyProofInvalid):
            ConsistencyProof(older.size, newer.size, hashes).check(older.root_hash, newer.root_hash)
        assert not merkle.verify_consistency(older.size, newer.size, hashes, older.root_hash, newer.root_hash)
    with pytest.raises(ConsistencyProofInvalid):
        ConsistencyProof(older.size, newer.size, path).check(Log("other", notes=12).nodes.root(), newer.root_hash)
