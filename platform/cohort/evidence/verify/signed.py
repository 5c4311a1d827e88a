"""Who signed this card, and does the signature hold every file of it?"""

import re
from collections.abc import Sequence
from typing import Any

from cohort.evidence import dsse
from cohort.evidence.canonical import CanonicalError, parse, sha256
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.checkpoint import RotationError, follow
from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.plain_text import counted
from cohort.evidence.verify.opened import ATTESTATION, KEYS, OUTSIDE, OpenCard

WEIGHTS = "weights/"
_MOST_KEYS = 1000
_HEX = re.compile(r"[0-9a-f]{64}")


def keys(card: OpenCard, given: PublicKey | None) -> str:
    """Read keys.json, follow its statements, and settle whose signatures count: those of the newest key alone, with
    which a card is made. A key that was replaced may have been stolen since."""
    match card.canonical(KEYS):
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
    card.origin, card.chain = origin, chain
    return _settle(card, given)


def _settle(card: OpenCard, given: PublicKey | None) -> str:
    newest = card.chain[-1]
    changes = counted(len(card.chain) - 1, "time")
    if given is not None and given not in card.chain:
        raise Rejected(
            f"the key given, {given.vkey}, is not one of this card's, of which the newest is {newest.vkey}",
            "A card of before a key came into use does not know it: then give the key before it.",
        )
    card.trusted = [newest]
    if given is None:
        words = f"the card's own {KEYS}: {newest.vkey}"
        return f"{words}, replaced {changes} so far" if len(card.chain) > 1 else words
    if given == newest:
        return f"the key that you gave: {given.vkey}"
    statements = len(card.chain) - 1 - card.chain.index(given)
    return f"{newest.vkey}, which {counted(statements, 'statement')} lead to from the key that you gave"


NOT_WHOSE = (
    "Who holds that key: it comes out of the card itself. Get the platform's key from its operator, not from the "
    "card, and give it with --key."
)
NOT_HOLDER = "That its holder is who they say, or that nobody else has the key."


def attestation(card: OpenCard) -> tuple[str, ...]:
    """Signature, subjects, and the statement's data on the record."""
    if not card.trusted:
        raise Cannot(f"there is no key to check {ATTESTATION} with")
    try:
        opened = dsse.opened(card.reader.needed(ATTESTATION), card.trusted)
        statement = parse(opened.payload)
    except (dsse.EnvelopeError, CanonicalError) as error:
        raise Rejected(f"{ATTESTATION}: {error}") from None
    subjects, predicate = _statement(opened.payload_type, statement)
    for name, recorded in (("seal", card.document["seal"]), ("audience", card.audience)):
        if predicate[name] != recorded:
            raise Rejected(f"{ATTESTATION}: is about the {name} {predicate[name]!a}, and the record says {recorded}")
    files = {name: digest for name, digest in subjects.items() if not name.startswith(WEIGHTS)}
    _subjects(card, files)
    card.payload_sha256 = sha256(opened.payload)
    lines = [
        f"signed by {opened.key.vkey}",
        f"{counted(len(files), 'file')} as signed, and no other file",
        f"issue {predicate['issue']} for the audience {predicate['audience']}"
        + (f": {predicate['reason']}" if predicate["reason"] else ""),
    ]
    if weights := len(subjects) - len(files):
        lines.append(f"it also names {counted(weights, 'file')} of the final weights, which are not in a card")
    return tuple(lines)


def _statement(payload_type: str, statement: Any) -> tuple[dict[str, str], dict[str, Any]]:
    match statement:
        case {
            "_type": dsse.STATEMENT,
            "predicateType": dsse.PREDICATE_TYPE,
            "predicate": {"seal": str(), "audience": str(), "issue": int(), "reason": str(), **others} as predicate,
            "subject": [*listed],
            **more,
        } if not more and not others and payload_type == dsse.PAYLOAD_TYPE:
            return _digests(listed), predicate
        case _:
            raise Rejected(f"{ATTESTATION}: is not a statement about a record ({dsse.PREDICATE_TYPE})")


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
    there = set(card.reader.entries) - OUTSIDE
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
