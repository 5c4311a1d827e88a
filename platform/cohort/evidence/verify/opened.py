"""A card that is being checked: its reader, what earlier checks read out of it, and its entry in the log."""

from dataclasses import dataclass, field
from typing import Any

from cohort.evidence import checkpoint, dsse, merkle
from cohort.evidence.canonical import CanonicalError, parse
from cohort.evidence.card_reader import Cannot, CardReader, Rejected
from cohort.evidence.checkpoint import Checkpoint
from cohort.evidence.cosignature import CosignatureFault, WitnessKey, cosignature_lines
from cohort.evidence.keys import PublicKey
from cohort.evidence.merkle import Proof, leaf_hash, verify_inclusion
from cohort.evidence.note import NoteError, open_note
from cohort.evidence.preregistration import FILE as PREREGISTRATION
from cohort.evidence.samples import Commitments
from cohort.evidence.status import Status
from cohort.evidence.verify.report import Withheld

ATTESTATION, LOG_ENTRY, PROOF, KEYS = "attestation.dsse.json", "log-entry.json", "proof.tlog-proof", "keys.json"
CONSISTENCY, COMMITMENTS, RECORD = "consistency.json", "commitments.jsonl", "record.json"
JUDGEMENTS = "judgements.jsonl"
OUTSIDE = frozenset({ATTESTATION, LOG_ENTRY, PROOF, CONSISTENCY, PREREGISTRATION})
"""Files that the attestation cannot hold: itself, and what is made after it. Their hashes and signatures prove them."""


@dataclass
class OpenCard:
    reader: CardReader
    document: dict[str, Any] = field(default_factory=dict)
    chain: list[PublicKey] = field(default_factory=list)
    """The platform's keys by keys.json, the first to the newest."""
    origin: str = ""
    trusted: list[PublicKey] = field(default_factory=list)
    """The newest of the chain, whose signatures count here; empty until the chain is checked."""
    payload_sha256: str = ""
    """Of the attestation."""
    subjects: dict[str, str] = field(default_factory=dict)
    """File → SHA-256 as the attestation's signer lists them; empty until its signature is checked."""
    entry: dict[str, Any] = field(default_factory=dict)
    """Of the log."""
    leaf: bytes = b""
    proof: Proof | None = None
    checkpoint: Checkpoint | None = None
    signed: bool = False
    """The checkpoint's signature was checked."""
    commitments: Commitments | None = None
    predicate_type: str = dsse.PREDICATE_TYPE
    """Of the attestation's statement: what the card is of."""
    about: str = RECORD
    """The file that holds `document`."""
    sealed: tuple[str, ...] = ("seal", "record_root")
    """Fields of `document` that the log's entry names."""
    address: str = ""
    """Of the platform that issued the card, by its attestation."""
    older: "OpenCard | None" = None
    """The card that this one is compared with, once it has checked itself."""
    witnesses: tuple[WitnessKey, ...] = ()
    """Whose signatures under checkpoints are checked."""
    life: Status | None = None
    """The newest status of the record that is known."""
    answered: bool = False
    """Whether the issuing platform was asked, and gave a status of its own."""

    @property
    def audience(self) -> str:
        return str(self.document["audience"])

    def withholds(self, name: str) -> bool:
        """Whether the sealed file `name` exists and is not for this card's audience."""
        listed = any(entry["path"] == name for entry in self.document["files"])
        return listed and name not in self.reader.entries

    def canonical(self, name: str) -> Any:
        """The value of a file of canonical JSON that a check needs."""
        try:
            return parse(self.reader.needed(name))
        except CanonicalError as error:
            raise Rejected(f"{name}: {error}") from None

    def text(self, name: str) -> str:
        try:
            return self.reader.needed(name).decode("utf-8")
        except UnicodeDecodeError:
            raise Rejected(f"{name}: is not UTF-8") from None

    def value(self, section: str, field_name: str) -> Any:
        """A field's value. Raises Withheld when the card does not show it, Rejected when there is none."""
        entry = self.document["sections"].get(section, {}).get(field_name)
        if entry is None:
            raise Rejected(f"{RECORD}: there is no field {section}.{field_name}")
        if "withheld" in entry:
            raise Withheld(f"{section}.{field_name} is withheld from this audience ({entry['audience']} sees it)")
        return entry["value"]


_BODY = frozenset({"at", "actor", "kind", "subject", "project", "before", "after", "reason", "data", "nonce"})


def entry(card: OpenCard) -> str:
    """The log's entry is about this seal and this attestation."""
    body = card.canonical(LOG_ENTRY)
    if not isinstance(body, dict) or set(body) != _BODY or not isinstance(body["data"], dict):
        raise Rejected(f"{LOG_ENTRY}: is not an entry of the log")
    data: dict[str, Any] = body["data"]
    for name in card.sealed:
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
        card.proof = merkle.parse(card.text(PROOF))
        if card.proof.extra is not None:
            raise Rejected(f"{PROOF}: holds data that nothing signs")
        # the signature is the next check's
        card.checkpoint = checkpoint.parse(card.proof.checkpoint.rpartition("\n\n")[0] + "\n")
    except (merkle.ProofError, checkpoint.CheckpointError) as error:
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
        opened = open_note(card.proof.checkpoint, card.chain)  # what an earlier key signed as well must fit too
    except NoteError as error:
        raise Rejected(f"{PROOF}: the checkpoint {error}") from None
    if not set(card.trusted) <= set(opened.verified):
        raise Rejected(f"{PROOF}: the checkpoint is not signed by {card.trusted[0].vkey}")
    if card.checkpoint.origin != card.origin:
        raise Rejected(f"{PROOF}: is of the log {card.checkpoint.origin!a}, and the keys are of {card.origin!a}")
    card.signed = True
    words = f"root of {card.checkpoint.size:,} entries, signed by {card.trusted[0].vkey}"
    try:
        return (words, *cosignature_lines(card.proof.checkpoint, opened.unknown, card.witnesses))
    except CosignatureFault as fault:
        raise Rejected(f"{PROOF}: {fault}") from None
