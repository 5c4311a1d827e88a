"""Is this record in the platform's log, and who says how large that log was?"""

from typing import Any

from cohort.evidence import checkpoint, tlog_proof
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.merkle import leaf_hash, verify_inclusion
from cohort.evidence.note import NoteError, open_note
from cohort.evidence.plain_text import named
from cohort.evidence.verify.opened import ATTESTATION, LOG_ENTRY, PROOF, OpenCard

_BODY = frozenset({"at", "actor", "kind", "subject", "project", "before", "after", "reason", "data", "nonce"})


def entry(card: OpenCard) -> str:
    """The log's entry is about this seal and this attestation."""
    body = card.canonical(LOG_ENTRY)
    if not isinstance(body, dict) or set(body) != _BODY or not isinstance(body["data"], dict):
        raise Rejected(f"{LOG_ENTRY}: is not an entry of the log")
    data: dict[str, Any] = body["data"]
    for name in ("seal", "record_root"):
        if data.get(name) != card.document[name]:
            raise Rejected(f"{LOG_ENTRY}: is about another record: its {name} is {data.get(name)!a}")
    card.entry, card.leaf = body, leaf_hash(card.reader.needed(LOG_ENTRY))
    if not card.payload_sha256:
        raise Cannot(f"{LOG_ENTRY} cannot be held against {ATTESTATION}, which did not check")
    attestations = data.get("attestations")
    attested = attestations.get(card.audience) if isinstance(attestations, dict) else None
    if attested != card.payload_sha256:
        raise Rejected(f"{LOG_ENTRY}: names another attestation for the audience {card.audience}: {attested!a}")
    return f"{body['kind']} at {body['at']} by {body['actor']} names this seal and this attestation"


def inclusion(card: OpenCard) -> str:
    """The entry is in the log of the checkpoint's size and root."""
    try:
        card.proof = tlog_proof.parse(card.text(PROOF))
        if card.proof.extra is not None:
            raise Rejected(f"{PROOF}: holds data that nothing signs")
        # the signature is the next check's
        card.checkpoint = checkpoint.parse(card.proof.checkpoint.rpartition("\n\n")[0] + "\n")
    except (tlog_proof.ProofError, checkpoint.CheckpointError) as error:
        raise Rejected(f"{PROOF}: {error}") from None
    if not card.leaf:
        raise Cannot(f"there is no {LOG_ENTRY} that checked, to look for in the log")
    point = card.checkpoint
    if not verify_inclusion(card.leaf, card.proof.index, point.size, card.proof.path, point.root):
        raise Rejected(f"{PROOF}: does not lead from {LOG_ENTRY} to the root of the log")
    return f"entry {card.proof.index:,} of {point.size:,} in the log {point.origin}"


def signature(card: OpenCard) -> tuple[str, ...]:
    """The checkpoint is signed by a key that counts here, and of the log that the keys are of."""
    if card.proof is None or card.checkpoint is None:
        raise Cannot(f"there is no checkpoint in {PROOF} to check")
    if not card.trusted:
        raise Cannot("there is no key to check the checkpoint with")
    try:
        opened = open_note(card.proof.checkpoint, card.chain)  # what an earlier key signed beside it must fit too
    except NoteError as error:
        raise Rejected(f"{PROOF}: the checkpoint {error}") from None
    if not set(card.trusted) <= set(opened.verified):
        raise Rejected(f"{PROOF}: the checkpoint is not signed by {card.trusted[0].vkey}")
    if card.checkpoint.origin != card.origin:
        raise Rejected(f"{PROOF}: is of the log {card.checkpoint.origin!a}, and the keys are of {card.origin!a}")
    card.signed = True
    words = f"root of {card.checkpoint.size:,} entries, signed by {card.trusted[0].vkey}"
    return (words, f"signatures not checked: {named(list(opened.unknown))}") if opened.unknown else (words,)
