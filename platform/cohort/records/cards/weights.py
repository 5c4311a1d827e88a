"""weights.dsse.json: the final weights' files and their digests, in the form that OpenSSF's model signing gives them.

An in-toto statement in a DSSE envelope: its predicate lists every file with its digest, its one subject is the model
with the SHA-256 over those digests, in their order (model_signing, signature v1.0). The key is the log's, an
Ed25519 key, and the envelope lies in the card instead of a Sigstore bundle: any DSSE library checks it, and the card's
attestation covers it; the model-signing command itself wants a bundle.
"""

import hashlib
from collections.abc import Mapping

from cohort.evidence import dsse
from cohort.evidence.keys import SigningKey

FILE = "weights.dsse.json"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def weights_statement(weights: Mapping[str, str], *, name: str) -> bytes:
    """The statement's bytes. `weights`: path relative to the model's folder → SHA-256 in hex; not empty."""
    if not weights:
        raise ValueError("there are no final weights to sign")
    resources = [{"algorithm": "sha256", "digest": weights[path], "name": path} for path in sorted(weights)]
    whole = hashlib.sha256(b"".join(bytes.fromhex(weights[path]) for path in sorted(weights))).hexdigest()
    predicate = {
        "resources": resources,
        "serialization": {"allow_symlinks": False, "hash_type": "sha256", "ignore_paths": [], "method": "files"},
    }
    return dsse.statement({name: whole}, PREDICATE_TYPE, predicate)


def weights_envelope(weights: Mapping[str, str], *, name: str, key: SigningKey) -> bytes:
    return dsse.envelope(weights_statement(weights, name=name), dsse.PAYLOAD_TYPE, key)
