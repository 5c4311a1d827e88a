"""A card on the check's table: its reader, and what the checks before have already read out of it."""

from dataclasses import dataclass, field
from typing import Any

from cohort.evidence.canonical import CanonicalError, parse
from cohort.evidence.card_reader import CardReader, Rejected
from cohort.evidence.checkpoint import Checkpoint
from cohort.evidence.keys import PublicKey
from cohort.evidence.samples import Commitments
from cohort.evidence.tlog_proof import Proof
from cohort.evidence.verify.report import Withheld

ATTESTATION, LOG_ENTRY, PROOF, KEYS = "attestation.dsse.json", "log-entry.json", "proof.tlog-proof", "keys.json"
CONSISTENCY, COMMITMENTS, RECORD = "consistency.json", "commitments.jsonl", "record.json"
OUTSIDE = frozenset({ATTESTATION, LOG_ENTRY, PROOF, CONSISTENCY})
"""Files that the attestation cannot hold: itself, and what is made after it. Their hashes and signatures prove them."""


@dataclass
class OpenCard:
    reader: CardReader
    document: dict[str, Any] = field(default_factory=dict)
    chain: list[PublicKey] = field(default_factory=list)
    """The platform's keys by keys.json, the first to the newest."""
    origin: str = ""
    trusted: list[PublicKey] = field(default_factory=list)
    """The newest of the chain, whose signatures count here; empty until the chain has checked."""
    payload_sha256: str = ""
    """Of the attestation."""
    entry: dict[str, Any] = field(default_factory=dict)
    """Of the log."""
    leaf: bytes = b""
    proof: Proof | None = None
    checkpoint: Checkpoint | None = None
    signed: bool = False
    """The checkpoint's signature was checked."""
    commitments: Commitments | None = None

    @property
    def audience(self) -> str:
        return str(self.document["audience"])

    def withholds(self, name: str) -> bool:
        """Whether the sealed file `name` exists and is not for this card's audience."""
        listed = any(entry["path"] == name for entry in self.document["files"])
        return listed and name not in self.reader.entries

    def canonical(self, name: str) -> Any:
        """The value of a file of canonical JSON that a check stands on."""
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
        """A field's value. Raises Withheld when the card does not show it, Rejected when the record has no such."""
        entry = self.document["sections"].get(section, {}).get(field_name)
        if entry is None:
            raise Rejected(f"{RECORD}: there is no field {section}.{field_name}")
        if "withheld" in entry:
            raise Withheld(f"{section}.{field_name} is withheld from this audience ({entry['audience']} sees it)")
        return entry["value"]
