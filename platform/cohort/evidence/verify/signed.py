"""Who signed this card, and does the signature hold every file of it?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.evidence import dsse, status
from cohort.evidence.canonical import CanonicalError, parse, sha256
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.checkpoint import RotationError, follow
from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.plain_text import counted
from cohort.evidence.verify.opened import ATTESTATION, KEYS, OUTSIDE, OpenCard
from cohort.evidence.verify.report import UnknownSigner

WEIGHTS = "weights/"
_MOST_KEYS = 1000
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class KnownKeys:
    """Keys of a log, from a source other than the card."""

    keys: tuple[PublicKey, ...]
    """In order of use; not empty."""
    origin: str = ""
    """The log's name, where these are all its keys from the first on, as in keys.json; else empty."""


def log_keys(value: Any) -> KnownKeys:
    """The keys that the content of a keys.json lists, when its statements lead from each to the next. Raises
    Rejected."""
    match value:
        case {"origin": str(origin), "keys": [*vkeys], "rotations": [*statements], **more} if not more and vkeys:
            pass
        case _:
            raise Rejected(f"{KEYS}: is not an origin, its keys and the statements that lead from each to the next")
    if len(statements) != len(vkeys) - 1 or len(vkeys) > _MOST_KEYS:
        raise Rejected(f"{KEYS}: {len(vkeys)} keys, and {len(statements)} statements that lead from one to the next")
    try:
        listed = [parse_vkey(str(vkey)) for vkey in vkeys]
        chain = follow(listed[0], [str(statement) for statement in statements])
    except (KeyFault, RotationError) as error:
        raise Rejected(f"{KEYS}: {error}") from None
    if chain != listed:
        raise Rejected(f"{KEYS}: its statements lead to other keys than it lists")
    return KnownKeys(tuple(chain), origin)


def own_keys(card: OpenCard) -> str:
    """Read the card's keys.json, and settle whose signatures count in it: those of the newest key alone, with which a
    card is made. A key that was replaced may have been stolen since. Returns the newest key."""
    listed = log_keys(card.canonical(KEYS))
    card.origin, card.chain = listed.origin, list(listed.keys)
    card.trusted = [card.chain[-1]]
    return card.trusted[0].vkey


def keys(card: OpenCard, known: Sequence[KnownKeys]) -> str:
    """Whether the card's signer is known. Raises UnknownSigner."""
    own_keys(card)
    newest = card.chain[-1]
    for log in sorted(known, key=lambda log: not log.origin):  # a single key does not excuse what keys.json refuses
        try:
            first = first_known(card.chain, card.origin, log)
        except Rejected:
            card.trusted = []
            raise
        if first is None:
            continue
        if statements := len(card.chain) - 1 - card.chain.index(first):
            return f"{newest.vkey}, which {counted(statements, 'statement')} lead to from a known key"
        return f"a known key: {newest.vkey}"
    changes = counted(len(card.chain) - 1, "time")
    words = f"the card's own {KEYS}: {newest.vkey}" + (f", replaced {changes} so far" if len(card.chain) > 1 else "")
    raise UnknownSigner(words, *(_differs(card, log) for log in known))


def first_known(chain: list[PublicKey], origin: str, log: KnownKeys) -> PublicKey | None:
    """The newest known key in `chain`, the keys of a card in the name of the log `origin`; None when it holds none.
    Raises Rejected for a card in the name of a log whose keys are all known, and are others."""
    if log.keys[0] not in chain:
        if log.origin == origin:
            raise Rejected(
                f"it is in the name of the log {log.origin!a}, and signed by none of the keys that this log ever had",
                f"signed by {chain[-1].vkey}; the log's newest key is {log.keys[-1].vkey}",
            )
        return None
    shared = log.keys[0]
    for ours, theirs in zip(log.keys, chain[chain.index(shared) :], strict=False):
        if ours != theirs:
            raise Rejected(f"after {shared.vkey} came {ours.vkey}, and the card says {theirs.vkey}")
        shared = ours
    return shared


def _differs(card: OpenCard, log: KnownKeys) -> str:
    key = log.keys[-1]
    if log.origin or key.name not in {link.name for link in card.chain}:
        return f"not of the log {key.name!a}, whose key is known: {key.vkey}"
    return (
        f"it is in the name of {key.name!a}, and has not the known key {key.vkey}: somebody else made it, or it is of "
        "before this key came into use; give the log's keys.json, which lists the keys before it too"
    )


def attestation(card: OpenCard) -> tuple[str, ...]:
    """Signature, subjects, and the statement's data on the record."""
    if not card.trusted:
        raise Cannot(f"there is no key to check {ATTESTATION} with")
    try:
        opened = dsse.opened(card.reader.needed(ATTESTATION), card.trusted)
        statement = parse(opened.payload)
    except (dsse.EnvelopeError, CanonicalError) as error:
        raise Rejected(f"{ATTESTATION}: {error}") from None
    subjects, predicate = _statement(card, opened.payload_type, statement)
    for name, recorded in (("seal", card.document["seal"]), ("audience", card.audience)):
        if predicate[name] != recorded:
            raise Rejected(f"{ATTESTATION}: is about the {name} {predicate[name]!a}, and the record says {recorded}")
    card.subjects = subjects
    files = {name: digest for name, digest in subjects.items() if not name.startswith(WEIGHTS)}
    _subjects(card, files)
    card.payload_sha256, card.address = sha256(opened.payload), predicate["platform"]
    lines = [
        f"signed by {opened.key.vkey}",
        f"{counted(len(files), 'file')} as signed, and no other file",
        f"issue {predicate['issue']} for the audience {predicate['audience']}"
        + (f": {predicate['reason']}" if predicate["reason"] else ""),
    ]
    if weights := len(subjects) - len(files):
        lines.append(f"it also names {counted(weights, 'file')} of the final weights, which are not in a card")
    return tuple(lines)


def _statement(card: OpenCard, payload_type: str, statement: Any) -> tuple[dict[str, str], dict[str, Any]]:
    match statement:
        case {
            "_type": dsse.STATEMENT,
            "predicateType": card.predicate_type,
            "predicate": {
                "seal": str(),
                "audience": str(),
                "issue": int(),
                "reason": str(),
                "platform": str(),
                **others,
            } as predicate,
            "subject": [*listed],
            **more,
        } if not more and not others and payload_type == dsse.PAYLOAD_TYPE:
            return _digests(listed), predicate
        case _:
            raise Rejected(f"{ATTESTATION}: is not a statement about {card.about} ({card.predicate_type})")


def _digests(listed: Sequence[Any]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for subject in listed:
        match subject:
            case {"name": str(name), "digest": {"sha256": str(digest), **others}, **more} if not others and not more:
                if name in digests or not _HEX.fullmatch(digest):
                    raise Rejected(f"{ATTESTATION}: names {name!a} twice, or with what is no sha256")
                digests[name] = digest
            case _:
                raise Rejected(f"{ATTESTATION}: a subject is not a name with its sha256")
    return digests


def _subjects(card: OpenCard, files: dict[str, str]) -> None:
    there = set(card.reader.entries) - OUTSIDE - status.FILES
    if missing := sorted(set(files) - there):
        raise Rejected(f"{missing[0]!a} is signed and missing from the card")
    if extra := sorted(there - set(files)):
        raise Rejected(f"{extra[0]!a} is in the card and not signed")
    problems = []
    for name, digest in files.items():
        try:
            actual = card.reader.sha256(name)
        except Rejected as fault:
            problems.append(str(fault))
            continue
        if actual != digest:
            problems.append(f"{name}: changed; its sha256 is {actual}, signed is {digest}")
    if problems:
        raise Rejected(*problems[:10])
