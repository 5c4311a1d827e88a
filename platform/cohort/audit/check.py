"""Rebuild the log from its rows and compare: bodies, indices, tree, signed heads, keys. Trusts nothing that is derived.

It checks that the rows are consistent. The owner of the database and the key can write another log that passes; only a
checkpoint that somebody else has kept shows it (`against`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from cohort.audit.models import LogCheckpoint, LogCosignature, LogKey, TreeHead
from cohort.audit.tree import READ_ROWS, LogFault
from cohort.evidence.canonical import CanonicalError, parse
from cohort.evidence.checkpoint import Checkpoint, CheckpointError, RotationError, follow, open_checkpoint
from cohort.evidence.cosignature import WitnessKey
from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.merkle import Peaks, leaf_hash
from cohort.evidence.note import NoteError

_FIELDS = {"at", "actor", "kind", "subject", "project", "before", "after", "reason", "data", "nonce"}
_PLACED = """
    SELECT leaf.idx, leaf.leaf, entry.id, entry.at, entry.actor, entry.kind, entry.subject, entry.project, entry.body
    FROM audit_auditleaf AS leaf LEFT JOIN audit_auditentry AS entry ON entry.id = leaf.entry_id ORDER BY leaf.idx
"""
_WAITING = """
    SELECT entry.id, entry.at, entry.actor, entry.kind, entry.subject, entry.project, entry.body,
           pending.entry_id IS NOT NULL
    FROM audit_auditentry AS entry
    LEFT JOIN audit_auditleaf AS leaf ON leaf.entry_id = entry.id
    LEFT JOIN audit_auditpending AS pending ON pending.entry_id = entry.id
    WHERE leaf.idx IS NULL OR pending.entry_id IS NOT NULL ORDER BY entry.id
"""


@dataclass(frozen=True)
class Kept:
    """A checkpoint from outside the database, to compare with."""

    name: str
    """Where it comes from, for messages."""
    note: str


@transaction.atomic(durable=True)
def check(against: Sequence[Kept] = ()) -> list[str]:
    """Check everything and return a line for each check that passed. Raises LogFault naming the first fault.

    `against` are checkpoints that were kept elsewhere: the log must begin with exactly what each was signed over.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")  # all of it at one moment
    keys, rows = _keys()
    stored = [_stored(checkpoint, rows) for checkpoint in LogCheckpoint.objects.order_by("size")]
    kept = [(copy.name, _opened(copy.note, keys, copy.name)) for copy in against]
    expected: dict[int, list[tuple[str, Checkpoint]]] = {}
    for name, head in [*stored, *kept]:
        if not keys or head.origin != keys[0].name:
            own = keys[0].name if keys else "unnamed"
            raise LogFault(f"{name} is of the log {head.origin!a}, and this one is {own!a}")
        expected.setdefault(head.size, []).append((name, head))
    size = _rebuilt(expected)
    waiting = _rest()
    cosigned = _cosignatures()
    return [
        f"{size:,} entries: each is canonical, agrees with its columns and has its leaf; the indices have no gap",
        f"{waiting:,} entries wait for their index" if waiting else "every entry has its index",
        f"{len(rows):,} keys, each signed for by the one before" if len(rows) > 1 else f"{len(rows):,} key",
        f"{len(stored):,} checkpoints: each is signed by the key of its time and fits the entries",
        *([f"{cosigned:,} cosignatures fit their checkpoints"] if cosigned else []),
        *(f"{name}: the log begins with the {head.size:,} entries it was signed over" for name, head in kept),
    ]


# ---------------------------------------------------------------------- keys and checkpoints


def _keys() -> tuple[list[PublicKey], list[LogKey]]:
    rows = list(LogKey.objects.order_by("pk"))
    if not rows:
        return [], []
    try:
        keys = [parse_vkey(row.vkey) for row in rows]
        chain = follow(keys[0], [row.rotation for row in rows[1:]])
    except (KeyFault, RotationError) as error:
        raise LogFault(f"the log's keys: {error}") from None
    if rows[0].rotation or chain != keys:
        raise LogFault("the log's keys are not those that the statements lead to")
    if sorted(sizes := [row.since_size for row in rows]) != sizes:
        raise LogFault("the log's keys are not in the order of the tree's sizes")
    return keys, rows


def _stored(row: LogCheckpoint, rows: list[LogKey]) -> tuple[str, Checkpoint]:
    name = f"checkpoint {row.size:,}"
    due = next((key for key in reversed(rows) if key.since_size < row.size), rows[0] if rows else None)
    if due is None or row.key_id != due.pk:
        raise LogFault(f"{name} is not of the key that signed at its time")
    head = _opened(row.note, [parse_vkey(due.vkey)], name)
    if head.size != row.size:
        raise LogFault(f"{name} was signed over {head.size:,} entries")
    return name, head


def _opened(note: str, keys: Sequence[PublicKey], name: str) -> Checkpoint:
    try:
        return open_checkpoint(note, keys)
    except (NoteError, CheckpointError) as error:
        raise LogFault(f"{name}: {error}") from None


def _cosignatures() -> int:
    count = 0
    notes = dict(LogCheckpoint.objects.values_list("pk", "note"))  # no join: a checkpoint may have been dropped
    for row in LogCosignature.objects.order_by("pk"):
        name = f"the cosignature {row.pk} of {row.witness.split('+')[0]}"
        if row.checkpoint_id not in notes:
            raise LogFault(f"{name}: its checkpoint is gone")
        try:
            seen = WitnessKey.parse(row.witness).verified(notes[row.checkpoint_id], row.line)
        except KeyFault as error:
            raise LogFault(f"{name}: {error}") from None
        if seen is None or seen != row.at:
            raise LogFault(f"{name} does not fit its checkpoint")
        count += 1
    return count


# ---------------------------------------------------------------------- entries and tree


def _rebuilt(expected: dict[int, list[tuple[str, Checkpoint]]]) -> int:
    """Check every indexed entry in order, and each signed root on the way. Returns the number of entries."""
    peaks = Peaks()
    _compare(peaks, expected)
    for idx, leaf, *entry in _read(_PLACED):
        if idx != peaks.size:
            raise LogFault(f"entry {peaks.size:,} is missing: after index {peaks.size - 1:,} comes {idx:,}")
        if entry[0] is None:
            raise LogFault(f"entry {idx:,}: its row is gone")
        _sound(f"entry {idx:,}", entry)
        if leaf_hash(bytes(entry[-1])) != bytes(leaf):
            raise LogFault(f"entry {idx:,} was changed: its bytes are not those of its leaf")
        peaks.append(bytes(leaf))
        _compare(peaks, expected)
    if expected:
        size, signed = min(expected.items())
        raise LogFault(f"the log was cut: {peaks.size:,} entries are left of the {size:,} of {signed[0][0]}")
    head = TreeHead.objects.first()
    if (head.size, bytes(head.peaks)) != (peaks.size, peaks.packed()) if head is not None else peaks.size:
        raise LogFault("the tree's head is not that of the entries")
    return peaks.size


def _compare(peaks: Peaks, expected: dict[int, list[tuple[str, Checkpoint]]]) -> None:
    """Compare the root with the checkpoints signed at this size, and remove them from `expected`."""
    for name, head in expected.pop(peaks.size, []):
        if head.root != peaks.root():
            raise LogFault(
                f"{name} was signed over other entries: somewhere before index {peaks.size:,} the log was rewritten"
            )


def _rest() -> int:
    """Check the entries without an index: each must have one pending row. Returns how many there are."""
    count = 0
    for *entry, waits in _read(_WAITING):
        name = f"the entry with id {entry[0]}"
        if not waits:
            raise LogFault(f"{name} has no index and does not wait for one")
        _sound(name, entry)
        count += 1
    placed = "SELECT pending.entry_id FROM audit_auditpending AS pending JOIN audit_auditleaf USING (entry_id) LIMIT 1"
    for (twice,) in _read(placed):
        raise LogFault(f"the entry with id {twice} has an index and waits for another")
    return count


def _sound(name: str, entry: list[Any]) -> None:
    """Raises LogFault unless the body is canonical, is an entry, and agrees with the columns."""
    _, at, actor, kind, subject, project, body = entry
    try:
        content = parse(bytes(body))
    except CanonicalError as error:
        raise LogFault(f"{name}: {error}") from None
    if not isinstance(content, dict) or set(content) != _FIELDS:
        raise LogFault(f"{name}: its bytes are no entry")
    columns = {
        "at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "actor": actor,
        "kind": kind,
        "subject": subject,
        "project": project or None,
    }
    for field, value in columns.items():
        if content[field] != value:
            raise LogFault(f"{name}: its column {field} says {value!a}, and its bytes {content[field]!a}")


def _read(statement: str) -> Iterator[tuple[Any, ...]]:
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement)
        while rows := cursor.fetchmany(READ_ROWS):
            yield from rows
