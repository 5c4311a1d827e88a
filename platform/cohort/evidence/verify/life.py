"""What happened to the record after its seal? By the signed status in the zip, the one in an older card, and the one
that the issuing platform gives; of these the newest counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cohort.evidence import status
from cohort.evidence.card_reader import Cannot, Rejected
from cohort.evidence.cosignature import CosignatureFault, cosignature_lines
from cohort.evidence.plain_text import one_line
from cohort.evidence.status import Status, StatusFault, written
from cohort.evidence.verify.opened import RECORD, OpenCard
from cohort.evidence.verify.report import StatusUnknown
from cohort.evidence.verify.signed import KnownKeys, first_known

CLOCK = timedelta(minutes=10)
"""By how much the clocks of reader and platform may differ."""


class NoAnswer(Exception):
    """The platform gave no status. The message says why."""


@dataclass(frozen=True)
class StatusQuery:
    """How a record's life is looked for."""

    now: datetime
    """Aware; by the reader's clock."""
    fetch: Callable[[str, str], bytes] | None = None
    """(address, seal) → status.json of the platform there. Raises NoAnswer. None: nobody is asked."""
    needed: bool = True
    """Whether a card without a current status has an unknown one; else only what is there is checked."""


def check(card: OpenCard, query: StatusQuery, known: Sequence[KnownKeys], accepted: bool) -> tuple[str, ...]:
    """`accepted`: whether the card is as issued and of a known signer. Only then the platform that it names is asked:
    the address in any other card may be a stranger's. Raises Rejected, Cannot, StatusUnknown."""
    lines: list[str] = []
    bundled = _bundled(card, known)
    candidates = [bundled] if bundled is not None else []
    if bundled is None and query.needed:
        lines.append("this zip came without its status: every download from the platform has one")
    if (other := _of_older(card, known)) is not None:
        candidates.append(other)
        lines += _compared(bundled, other, "the other card")
    if query.fetch is not None and accepted:
        lines += _from_platform(card, query.fetch, known, bundled, candidates)
    elif query.needed:
        lines.append("the platform was not asked" + ("" if accepted else ": the card itself is not accepted"))
    newest = max(candidates, key=lambda each: each.index, default=None)
    if newest is None:
        if not query.needed:
            return ()
        raise StatusUnknown("whether the record was revoked or superseded since it was sealed is not known", *lines)
    card.life = newest
    period = f"as of {written(newest.issued_at)}, valid until {written(newest.valid_until)}"
    summary = (f"{newest.words} ({period}; entry {newest.index:,} of the log)", *_cosigned(card, newest), *lines)
    if query.needed and (why := _not_current(card, newest, query.now)):
        raise StatusUnknown(why, *summary)
    return summary


def _bundled(card: OpenCard, known: Sequence[KnownKeys]) -> Status | None:
    """The status in the zip, with its reading copies as they were signed."""
    there = status.FILES & set(card.reader.entries)
    if not there:
        return None
    if missing := sorted(status.FILES - there):
        raise Rejected(f"{missing[0]} is missing: a download has all of {', '.join(sorted(status.FILES))}")
    for name in there:
        if card.reader.entries[name].size > status.MAX_BYTES:
            raise Rejected(f"{name}: larger than {status.MAX_BYTES:,} bytes")
    try:
        opened = _opened(card, card.reader.whole(status.FILE), known)
    except StatusFault as fault:
        raise Rejected(f"{status.FILE}: {fault}") from None
    for name, digest in opened.copies.items():
        if card.reader.sha256(name) != digest:
            raise Rejected(f"{name}: was changed after it was signed; {status.FILE} says: {opened.words}")
    return opened


def _opened(card: OpenCard, content: bytes, known: Sequence[KnownKeys]) -> Status:
    """Raises StatusFault, Cannot."""
    if not card.signed or card.checkpoint is None:
        raise Cannot("the card's own checkpoint did not check, so its status cannot be held against it")
    seal = str(card.document["seal"])
    opened = status.open_status(content, seal=seal, chain=card.chain, origin=card.origin, card=card.checkpoint)
    for log in known:
        try:
            first_known(list(opened.chain), card.origin, log)
        except Rejected as fault:
            raise StatusFault(f"is signed by a key that the known keys refuse: {fault}") from None
    try:
        _cosigned(card, opened)
    except CosignatureFault as fault:
        raise StatusFault(f"its proof: {fault}") from None
    return opened


def _cosigned(card: OpenCard, opened: Status) -> tuple[str, ...]:
    return cosignature_lines(opened.checkpoint, opened.others, card.witnesses)


def _of_older(card: OpenCard, known: Sequence[KnownKeys]) -> Status | None:
    """That of this record in the card of `--against`."""
    older = card.older
    if older is None or status.FILE not in older.reader.entries or older.document["seal"] != card.document["seal"]:
        return None
    try:
        return _opened(card, older.reader.whole(status.FILE), known)
    except StatusFault as fault:
        raise Cannot(f"the other card's {status.FILE}: {fault}") from None


def _from_platform(
    card: OpenCard,
    fetch: Callable[[str, str], bytes],
    known: Sequence[KnownKeys],
    bundled: Status | None,
    candidates: list[Status],
) -> list[str]:
    """Adds the platform's own status to `candidates`, where it gives one that is its own."""
    address = one_line(card.address)
    try:
        answer = fetch(card.address, str(card.document["seal"]))
    except NoAnswer as why:
        return [f"asked {address}, which gave no status: {why}"]
    try:
        opened = _opened(card, answer, known)
    except StatusFault as fault:
        return [f"asked {address}, whose answer is not believed: {status.FILE} {fault}"]
    candidates.append(opened)
    card.answered = True
    return [f"asked {address} for the status of this seal", *_compared(bundled, opened, "the platform's")]


def _compared(bundled: Status | None, other: Status, whose: str) -> list[str]:
    if bundled is None or bundled.index >= other.index:
        return []
    return [
        f"the status in the zip is an older one: entry {bundled.index:,} of the log; {whose} is entry {other.index:,}",
        f"the zip's said: {bundled.words}",
    ]


def _not_current(card: OpenCard, newest: Status, now: datetime) -> str:
    """Why the newest status that is known says nothing of today; empty when it does. Raises Rejected."""
    at = written(now)
    text = str(card.document["head"]["sealed_at"])
    try:
        sealed = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise Rejected(f"{RECORD}: it says that it was sealed at {text!a}, which is no moment") from None
    if sealed - now > CLOCK:
        return f"by this machine's clock it is {at}, before the record was sealed ({written(sealed)}): set the clock"
    if newest.issued_at - now > CLOCK:
        return f"by this machine's clock it is {at}, before this status was issued: set the clock"
    if now > newest.valid_until and newest.state not in status.FINAL:
        return f"the newest status that is known ended on {written(newest.valid_until)}: get a newer one"
    return ""
