"""Is this card's log the one of an earlier card, grown, or was it rewritten in between?"""

import re
from typing import IO, Any

from cohort.evidence import keys
from cohort.evidence.card_reader import Cannot, CardReader, Rejected
from cohort.evidence.merkle import HASH_BYTES, consistency_roots, verify_consistency
from cohort.evidence.plain_text import counted
from cohort.evidence.verify import opened, record, signed
from cohort.evidence.verify.opened import CONSISTENCY, OpenCard
from cohort.evidence.verify.report import Report

_SIZE = re.compile(r"[1-9][0-9]{0,18}")


def proofs(card: OpenCard) -> str:
    """consistency.json is of this checkpoint, and every proof in it leads to this checkpoint's root. (One from a size
    that is a power of 2 begins with the older root itself, so only an older card can check it.)"""
    if not card.signed or card.checkpoint is None:
        raise Cannot(f"there is no checkpoint that checked, to hold {CONSISTENCY} against")
    paths = _read(card)
    alone = 0
    for size, path in paths.items():
        if size >= card.checkpoint.size:
            raise Rejected(f"{CONSISTENCY}: {size} is not an earlier size of this log of {card.checkpoint.size}")
        if size & (size - 1) == 0:
            alone += 1
            if consistency_roots(size, card.checkpoint.size, [bytes(HASH_BYTES), *path]) is None:
                raise Rejected(f"{CONSISTENCY}: the proof from {size} has {len(path)} hashes, which none has")
        elif (consistency_roots(size, card.checkpoint.size, path) or ())[1:] != (card.checkpoint.root,):
            raise Rejected(f"{CONSISTENCY}: the proof from {size} does not lead to this log's root")
    words = f"{counted(len(paths), 'proof')} from earlier sizes of the log to this one"
    return f"{words}, of which {alone} can be checked with an older card only" if alone else words


def _read(card: OpenCard) -> dict[int, list[bytes]]:
    listed: dict[str, Any]
    match card.canonical(CONSISTENCY):
        case {"size": int(size), "from": dict(listed), **more} if not more:
            pass
        case _:
            raise Rejected(f"{CONSISTENCY}: is not a size and proofs from earlier sizes")
    assert card.checkpoint is not None
    if isinstance(size, bool) or size != card.checkpoint.size:
        raise Rejected(f"{CONSISTENCY}: is of a log of {size}, and the checkpoint of {card.checkpoint.size}")
    paths = {}
    for old, path in listed.items():
        if not _SIZE.fullmatch(old) or not isinstance(path, list):
            raise Rejected(f"{CONSISTENCY}: {old!a} is no size with its hashes")
        try:
            paths[int(old)] = [keys.decode(str(digest), HASH_BYTES) for digest in path]
        except ValueError as error:
            raise Rejected(f"{CONSISTENCY}: {error}") from None
    return paths


def against(card: OpenCard, handle: IO[bytes], name: str) -> tuple[str, ...]:
    """The log of the card in `handle` is a beginning of this card's log."""
    if not card.signed or card.checkpoint is None:
        raise Cannot("this card's own checkpoint did not check")
    older = _opened(handle, name)
    assert older.checkpoint is not None
    _same_keys(card, older)
    card.older = older
    was, now = older.checkpoint, card.checkpoint
    if was.size > now.size:
        raise Cannot(
            f"it is of a later log ({was.size:,} entries; this card's has {now.size:,}): give the two the other way",
            _kinship(card.document, older.document).replace("older card", "other card"),
        )
    if was.size == now.size:
        if was.root != now.root:
            raise Rejected(_FORKED.format(size=f"{was.size:,}"))
    else:
        path = _read(card).get(was.size)
        if path is None:
            raise Cannot(
                f"{CONSISTENCY} has no proof from the older card's size {was.size:,}; a newer card may have it"
            )
        if not verify_consistency(was.size, now.size, path, was.root, now.root):
            raise Rejected(_FORKED.format(size=f"{was.size:,}"))
    grown = f"the log of {counted(was.size, 'entry', 'entries')} that the older card holds is the beginning of this one"
    grown += f" of {now.size:,}"
    return grown, _kinship(card.document, older.document)


_FORKED = (
    "the log was written anew: its first {size} entries are not those that the older card holds, or its proof of it "
    "was changed"
)


def _opened(handle: IO[bytes], name: str) -> OpenCard:
    """The older card, checked as far as its checkpoint is trusted for: record, signature, place in its log."""
    older, report = OpenCard(CardReader(handle)), Report(name)
    for what, check in (
        ("layout", older.reader.open),
        ("record", lambda: record.read(older)),
        ("root", lambda: record.root(older)),
        ("seal", lambda: record.seal(older)),
        ("key", lambda: signed.own_keys(older)),
        ("attestation", lambda: signed.attestation(older)),
        ("entry", lambda: opened.entry(older)),
        ("inclusion", lambda: opened.inclusion(older)),
        ("checkpoint", lambda: opened.signature(older)),
    ):
        if not report.run(what, check, ""):
            raise Cannot(f"the older card does not check itself: {report.checks[-1].detail}")
    return older


def _same_keys(card: OpenCard, older: OpenCard) -> None:
    if older.origin != card.origin:
        raise Rejected(f"the older card is of the log {older.origin!a}, and this one of {card.origin!a}")
    if len(older.chain) > len(card.chain) and older.chain[: len(card.chain)] == card.chain:
        raise Cannot("it knows a key that came after this card's: give the two the other way")
    if card.chain[: len(older.chain)] != older.chain:
        raise Rejected(
            "the older card's keys are not the beginning of this card's: no statement leads from one to the other"
        )


def _kinship(document: dict[str, Any], older: dict[str, Any]) -> str:
    """How the two records belong together, in words. Raises Rejected for two records of one name."""
    if document["seal"] == older["seal"]:
        return f"both cards hold the same record: one seal, for {older['audience']} and for {document['audience']}"
    head, was = document["head"], older["head"]
    if head["run"] != was["run"]:
        return f"the cards are of different runs: {was['run']} and {head['run']}"
    if (head["end"], head["version"]) == (was["end"], was["version"]):
        raise Rejected(
            f"both cards are version {head['version']} of end {head['end']} of run {head['run']}, with different seals"
        )
    if (head["end"], head["version"]) < (was["end"], was["version"]):
        return f"the older card holds a later version of this run's record: end {was['end']}, version {was['version']}"
    return f"the older card holds an earlier record of this run: end {was['end']}, version {was['version']}"
