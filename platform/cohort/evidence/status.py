"""status.json: the signed status of a record, next to a card: what happened to the record after its seal.

One file holds the status in clear, a DSSE envelope around an in-toto statement over it and its two reading copies, the
entry of the log that names that statement, the proof that the log holds the entry, proofs that this log continues the
one of the record's cards, and the log's keys. It is canonical JSON, so that each part's bytes follow from its value.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from cohort.evidence import checkpoint, dsse, keys, merkle
from cohort.evidence.canonical import CanonicalError, canonical, parse, sha256
from cohort.evidence.checkpoint import Checkpoint, RotationError, follow
from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.merkle import HASH_BYTES, Proof, leaf_hash, verify_consistency, verify_inclusion
from cohort.evidence.note import NoteError, open_note

SCHEMA = "cohort-status/1"
PREDICATE_TYPE = "urn:cohort:status:1"
ENTRY_KIND = "record_status_issued"
FILE, PAGE, PAPER = "status.json", "STATUS.html", "STATUS.pdf"
FILES = frozenset({FILE, PAGE, PAPER})
"""Added to a card when it is downloaded, and signed apart from it."""
MAX_BYTES = 2 * 1024**2
"""Each of them."""
MOST_DAYS = 90
"""Longest validity of a status; a longer one is refused, whoever signed it."""

State = Literal["revoked", "superseded", "rejected", "signed off", "partly signed off", "not signed off"]
STATES = ("revoked", "superseded", "rejected", "signed off", "partly signed off", "not signed off")
FINAL = ("revoked", "superseded")
"""States that no later status undoes: an ended status of them still holds."""
_PARTS = frozenset({"schema", "status", "envelope", "log_entry", "proof", "consistency", "keys"})
_KEYS: dict[str, tuple[type, ...]] = {
    "schema": (str,),
    "audience": (str,),
    "issuer": (dict,),
    "record": (dict,),
    "issue": (int,),
    "state": (dict,),
    "sign_offs": (list,),
    "revoked": (dict, type(None)),
    "superseded_by": (dict, type(None)),
    "later_end": (dict, type(None)),
    "entries": (dict, type(None)),
    "issued_at": (str,),
    "valid_until": (str,),
}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_HEX = re.compile(r"[0-9a-f]{64}")


class StatusFault(ValueError):
    """Bytes that are no status, or one that is not as its issuer made it. The message names the first fault."""


@dataclass(frozen=True)
class Status:
    """A status whose own signatures and proofs hold, by the keys that it lists."""

    document: Mapping[str, Any]
    state: State
    words: str
    """Its first line, for people."""
    seal: str
    index: int
    """Of its entry in the log: of two statuses of a record, the one with the larger index is the newer."""
    size: int
    """Entries of the log at its checkpoint."""
    issued_at: datetime
    valid_until: datetime
    copies: Mapping[str, str]
    """SHA-256 of STATUS.html and STATUS.pdf."""
    chain: tuple[PublicKey, ...]
    content: bytes
    checkpoint: str
    """The signed note."""
    others: tuple[str, ...]
    """Who signed the checkpoint besides the log, such as a witness: not checked here."""

    @property
    def address(self) -> str:
        """Where its issuer is reached."""
        return str(self.document["issuer"]["address"])


def moment(text: str) -> datetime:
    """Of 2026-11-22T10:00:00Z. Raises StatusFault."""
    if not _MOMENT.fullmatch(text):
        raise StatusFault(f"{text[:40]!a} is not a moment in UTC such as 2026-11-22T10:00:00Z")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise StatusFault(f"{text[:40]!a} is not a moment in UTC such as 2026-11-22T10:00:00Z") from None


def written(at: datetime) -> str:
    """`at`, aware, as a status has it: UTC, whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def payload_of(document: Mapping[str, Any], copies: Mapping[str, bytes]) -> bytes:
    """What is signed: a statement over the status's canonical bytes and its reading copies."""
    subjects = {"status": sha256(canonical(dict(document)))} | {name: sha256(copy) for name, copy in copies.items()}
    return dsse.statement(subjects, PREDICATE_TYPE, {"seal": document["record"]["seal"]})


def bundle(
    *,
    document: Mapping[str, Any],
    envelope: bytes,
    log_entry: bytes,
    proof: str,
    consistency: Mapping[int, Sequence[bytes]],
    listed_keys: Mapping[str, Any],
) -> bytes:
    """status.json. `consistency`: by the log's size in a card of the record, the proof from it to the log of
    `proof`."""
    paths = {str(size): [keys.encode(digest) for digest in path] for size, path in consistency.items()}
    return canonical(
        {
            "schema": SCHEMA,
            "status": dict(document),
            "envelope": parse(envelope),
            "log_entry": parse(log_entry),
            "proof": proof,
            "consistency": paths,
            "keys": dict(listed_keys),
        }
    )


def open_status(content: bytes, *, seal: str, chain: Sequence[PublicKey], origin: str, card: Checkpoint) -> Status:
    """The status in `content`, when it is of the record with this seal, its keys continue the card's `chain`, the
    newest of them signed it and its checkpoint, its log holds its entry, and that log continues the one of the card's
    checkpoint. Raises StatusFault."""
    try:
        value = parse(content)
    except CanonicalError as error:
        raise StatusFault(f"is not as it was written: {error}") from None
    if not isinstance(value, dict) or set(value) != _PARTS or value["schema"] != SCHEMA:
        raise StatusFault(f"is no status as {SCHEMA} has it")
    document = _document(value["status"])
    if document["record"]["seal"] != seal:
        raise StatusFault(f"is the status of another record: its seal is {document['record']['seal']}")
    trusted = _keys(value["keys"], chain, origin)
    payload, copies = _signed(value, document, trusted[-1])
    proof, point, others = _proof(value["proof"], trusted, origin)
    _entry(value["log_entry"], seal, sha256(payload), str(document["audience"]))
    if not verify_inclusion(leaf_hash(canonical(value["log_entry"])), proof.index, point.size, proof.path, point.root):
        raise StatusFault("its proof does not lead from its entry to the root of the log")
    _continues(value["consistency"], card, point)
    issued, until = moment(document["issued_at"]), moment(document["valid_until"])
    if not timedelta() < until - issued <= timedelta(days=MOST_DAYS):
        raise StatusFault(f"is valid from {written(issued)} to {written(until)}: {MOST_DAYS} days at most are taken")
    state = document["state"]
    return Status(
        document, cast("State", state["name"]), str(state["words"]), seal, proof.index, point.size, issued, until,
        copies, trusted, content, proof.checkpoint, others,
    )  # fmt: skip


def _document(value: Any) -> dict[str, Any]:
    """The shape that readers rely on."""
    if not isinstance(value, dict) or set(value) != set(_KEYS) or value["schema"] != SCHEMA:
        raise StatusFault(f"does not hold a status as {SCHEMA} has it")
    for name, kinds in _KEYS.items():
        if not isinstance(value[name], kinds) or isinstance(value[name], bool):
            raise StatusFault(f"its {name} is not of the kind that {SCHEMA} has")
    match value:
        case {
            "state": {"name": str(name), "words": str()},
            "issuer": {"address": str(), "log": str()},
            "record": {"seal": str(seal), "run": int(), "end": int(), "version": int(), "title": str()},
        } if name in STATES and _HEX.fullmatch(seal):
            return value
    raise StatusFault(f"names no state, issuer or record as {SCHEMA} has them")


def _keys(value: Any, chain: Sequence[PublicKey], origin: str) -> tuple[PublicKey, ...]:
    """The log's keys at the time of the status: those of the card, and the ones that replaced them since."""
    match value:
        case {"origin": str(name), "keys": [*vkeys], "rotations": [*statements], **more} if not more and vkeys:
            pass
        case _:
            raise StatusFault("lists no keys with the statements that lead from each to the next")
    try:
        listed = [parse_vkey(str(vkey)) for vkey in vkeys]
        followed = follow(listed[0], [str(statement) for statement in statements])
    except (KeyFault, RotationError) as error:
        raise StatusFault(f"its keys: {error}") from None
    if name != origin or followed != listed or listed[: len(chain)] != list(chain):
        raise StatusFault("is not by the keys of the card, nor by those that a signed statement of them leads to")
    return tuple(listed)


def _signed(value: Mapping[str, Any], document: Mapping[str, Any], key: PublicKey) -> tuple[bytes, dict[str, str]]:
    """The signed payload and the digests of the reading copies."""
    try:
        opened = dsse.opened(canonical(value["envelope"]), [key])
        statement = parse(opened.payload)
    except (dsse.EnvelopeError, CanonicalError) as error:
        raise StatusFault(f"its envelope {error}") from None
    try:
        digests = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
        kind, stated = statement["predicateType"], statement["predicate"]
    except (KeyError, TypeError):
        raise StatusFault("its signature is over no statement about a status") from None
    if (opened.payload_type, kind) != (dsse.PAYLOAD_TYPE, PREDICATE_TYPE):
        raise StatusFault(f"its signature is over something else than a status ({PREDICATE_TYPE})")
    if stated != {"seal": document["record"]["seal"]} or set(digests) != {"status", PAGE, PAPER}:
        raise StatusFault("its signature is about another record, or about other files")
    if digests.pop("status") != sha256(canonical(dict(document))):
        raise StatusFault("was changed after it was signed")
    return opened.payload, digests


def _proof(value: Any, trusted: Sequence[PublicKey], origin: str) -> tuple[Proof, Checkpoint, tuple[str, ...]]:
    try:
        proof = merkle.parse(str(value))
        opened = open_note(proof.checkpoint, trusted)
        point = checkpoint.parse(opened.text)
    except (merkle.ProofError, NoteError, checkpoint.CheckpointError) as error:
        raise StatusFault(f"its proof: {error}") from None
    if trusted[-1] not in opened.verified or point.origin != origin or proof.extra is not None:
        raise StatusFault("its checkpoint is not signed by the log's newest key, or is of another log")
    return proof, point, opened.unknown


def _entry(entry: Any, seal: str, payload_sha256: str, audience: str) -> None:
    match entry:
        case {"kind": kind, "data": {"seal": named, "statuses": {**statuses}}} if kind == ENTRY_KIND:
            if named == seal and statuses.get(audience) == payload_sha256:
                return
    raise StatusFault("the log's entry in it does not name this status")


def _continues(paths: Any, card: Checkpoint, point: Checkpoint) -> None:
    if point.size < card.size:
        raise StatusFault(
            f"is older than the card: the log had {point.size:,} entries at the time, and {card.size:,} at the card's"
        )
    path = paths.get(str(card.size)) if isinstance(paths, dict) else None
    try:
        hashes = [keys.decode(str(digest), HASH_BYTES) for digest in path or ()]
    except ValueError as error:
        raise StatusFault(f"its consistency proof: {error}") from None
    if point.size == card.size:
        if point.root != card.root:
            raise StatusFault("its log is not the one that the card is in")
    elif not verify_consistency(card.size, point.size, hashes, card.root, point.root):
        raise StatusFault("its log does not continue the one that the card is in")
