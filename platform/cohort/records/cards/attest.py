"""attestation.dsse.json: every file of a card and the final weights by their digests, signed with the log's key."""

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.evidence import dsse
from cohort.records.cards.pack import Packed

FILE = "attestation.dsse.json"
WEIGHTS = "weights/"
"""Before the names of the final weights' files, which are not in the card."""
AFTERWARDS = ("consistency.json", "log-entry.json", "proof.tlog-proof")
"""Files that only exist once the attestation is logged; they prove themselves."""


def statement(
    files: Sequence[Packed], weights: Mapping[str, str], *, seal: str, audience: str, issue: int, reason: str
) -> bytes:
    """The in-toto statement's bytes: the DSSE payload, whose digest goes into the log."""
    subjects = {file.name: file.sha256 for file in files} | {WEIGHTS + name: weights[name] for name in weights}
    predicate: dict[str, Any] = {"seal": seal, "audience": audience, "issue": issue, "reason": reason}
    return dsse.statement(subjects, dsse.PREDICATE_TYPE, predicate)
