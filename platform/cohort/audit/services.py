"""The audit log: add an entry, number what was committed, sign the tree's head, prove that an entry is in it.

`log` runs in the caller's transaction; all the rest has its own short ones and is refused within another
(`durable`), because a number that was given and rolled back would leave a gap, and a signed head cannot be undone.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django.db import connection, transaction
from django.db.models.functions import Now

from cohort.audit import keys
from cohort.audit.entries import NotLoggable, fitted, log, reason_checked, who
from cohort.audit.keys import keys_file, model_key_notes, model_key_recorded, public_keys, signing_key
from cohort.audit.models import AuditEntry, AuditLeaf, AuditPending, LogCheckpoint, LogKey, TreeHead
from cohort.audit.tree import READ_ROWS, LogFault, nodes, peaks_of, roots
from cohort.base.environment import environment
from cohort.evidence.checkpoint import Checkpoint, open_checkpoint, rotation
from cohort.evidence.keys import SigningKey, generate, load, parse_vkey
from cohort.evidence.merkle import leaf_hash
from cohort.evidence.note import sign_note
from grpo_core.errors import DataError

__all__ = [
    "LogFault",
    "NotLoggable",
    "fitted",
    "keys_file",
    "log",
    "model_key_notes",
    "model_key_recorded",
    "public_keys",
    "reason_checked",
    "signing_key",
    "who",
]
"""What is defined elsewhere and used from here."""

AT_MOST_EVERY = timedelta(seconds=60)
"""Least time between two periodic checkpoints."""
AT_ONCE = 10_000
"""Entries numbered in one transaction."""
_TRIES = 3
"""Attempts to sign: the key may be replaced between numbering and signing."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proof:
    """Proof that an entry is in the log, for anyone who trusts one of its keys."""

    body: bytes
    """The entry's exact bytes."""
    index: int
    path: list[bytes]
    """From the leaf's sibling to the root's child."""
    checkpoint: str
    """The signed note."""
    size: int
    """Leaves of that checkpoint's tree."""


# ---------------------------------------------------------------------- numbering


def integrate() -> int:
    """Give every committed entry its index, in the order of their ids. Returns how many there were.

    Several may do this at once: each waits for the other, and none leaves a gap.
    """
    total = 0
    while AuditPending.objects.exists():
        done = _number_some()
        if done == 0:  # another process was first
            break
        total += done
    return total


@transaction.atomic(durable=True)
def _number_some() -> int:
    head = _locked_head()
    peaks = peaks_of(head)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT entry.id, entry.body FROM audit_auditpending AS pending "
            "JOIN audit_auditentry AS entry ON entry.id = pending.entry_id ORDER BY entry.id LIMIT %s",
            [AT_ONCE],
        )
        waiting = cursor.fetchall()
        if not waiting:
            return 0
        with cursor.copy("COPY audit_auditleaf (idx, entry_id, leaf) FROM STDIN") as rows:
            for entry_id, body in waiting:
                leaf = leaf_hash(bytes(body))
                rows.write_row((peaks.size, entry_id, leaf))
                peaks.append(leaf)
        cursor.execute(
            "DELETE FROM audit_auditpending WHERE entry_id = ANY(%s)", [[pending_id for pending_id, _ in waiting]]
        )
    head.size, head.peaks = peaks.size, peaks.packed()
    head.save(update_fields=["size", "peaks"])
    return len(waiting)


def _locked_head() -> TreeHead:
    """Needs a transaction, and holds the lock until its end."""
    head = TreeHead.objects.select_for_update().filter(pk=1).first()
    if head is None:
        TreeHead.objects.bulk_create([TreeHead()], ignore_conflicts=True)
        head = TreeHead.objects.select_for_update().get(pk=1)
    return head


# ---------------------------------------------------------------------- signed heads


def checkpoint() -> LogCheckpoint:
    """Number the waiting entries and sign the head; returns the newest checkpoint when nothing was added since.

    Raises KeyFault without the key, and LogFault when the tree is not the one that the checkpoint before was signed
    over: then nothing is signed.
    """
    key = signing_key()
    if key.vkey not in public_keys()[0]:
        with transaction.atomic(durable=True):
            keys.key_row(key, size=_locked_head().size)
    for _ in range(_TRIES):
        integrate()
        row = _sign()
        if row is not None:
            return row
    raise LogFault("the entry that names the log's newest key is not in the log")


@transaction.atomic(durable=True)
def _sign() -> LogCheckpoint | None:
    """None when the key was replaced since the head was numbered: its entry comes first, then its first checkpoint."""
    head = _locked_head()
    signers = keys.signers()  # under the lock, which a replacement of the key needs too
    newest = LogCheckpoint.objects.order_by("-size").first()
    if newest is not None and newest.size >= head.size:
        if newest.size > head.size:
            raise LogFault(f"the log was cut: {head.size:,} leaves are left of {newest.size:,} that were signed")
        return newest
    row = keys.key_row(signers[0], size=head.size)
    if row.since_size >= head.size:
        return None
    root = _root_that_follows(head, newest)
    note = sign_note(Checkpoint(signers[0].name, head.size, root).text(), signers)
    return LogCheckpoint.objects.create(size=head.size, note=note, key=row, at=Now())


def _root_that_follows(head: TreeHead, newest: LogCheckpoint | None) -> bytes:
    """The head's root, by the leaves themselves, when the last checkpoint's root is on the way to it."""
    public = [parse_vkey(vkey) for vkey in public_keys()[0]]
    signed = {} if newest is None else {newest.size: open_checkpoint(newest.note, public).root}
    by_size = roots([head.size, *signed])
    for size, root in signed.items():
        if by_size[size] != root:
            raise LogFault(f"the first {size:,} leaves are not those of the checkpoint that was signed over them")
    if peaks_of(head).root() != by_size[head.size]:
        raise LogFault("the tree's head does not fit its leaves")
    return by_size[head.size]


def keep() -> None:
    """What the platform's worker does every few seconds: number, and once a minute at most sign what was added."""
    integrate()
    head = TreeHead.objects.first()
    newest = LogCheckpoint.objects.order_by("-size").first()
    if head is None or (newest is not None and newest.size == head.size):
        return
    if newest is not None and LogCheckpoint.objects.filter(pk=newest.pk, at__gt=Now() - AT_MOST_EVERY).exists():
        return
    checkpoint()


# ---------------------------------------------------------------------- proofs


def prove(entry: AuditEntry) -> Proof:
    """Proof that the committed `entry` is in the log, under a checkpoint that is signed now if there is none yet.

    Raises KeyFault and LogFault as `checkpoint` does.
    """
    proof = proof_of(entry)
    if proof is None:
        checkpoint()
        proof = proof_of(entry)
    if proof is None:
        raise LogFault(f"entry {entry.pk} is not among those that were committed")
    return proof


def proof_of(entry: AuditEntry) -> Proof | None:
    """The same under the newest checkpoint there is; None while there is none that holds it. Needs no private key."""
    leaf = AuditLeaf.objects.filter(entry=entry).first()
    newest = LogCheckpoint.objects.order_by("-size").first()
    if leaf is None or newest is None or newest.size <= leaf.idx:
        return None
    path = nodes(newest.size).inclusion(leaf.idx, newest.size)
    return Proof(bytes(entry.body), leaf.idx, path, newest.note, newest.size)


def proof_under(entry: AuditEntry, other: Proof) -> Proof:
    """The same under the checkpoint of another entry's proof. Raises LogFault for an entry that came later."""
    leaf = AuditLeaf.objects.filter(entry=entry).first()
    if leaf is None or leaf.idx >= other.size:
        raise LogFault(f"entry {entry.pk} is not under the checkpoint of {other.size:,} entries")
    path = nodes(other.size).inclusion(leaf.idx, other.size)
    return Proof(bytes(entry.body), leaf.idx, path, other.checkpoint, other.size)


def cosigned_checkpoint(index: int, *, key: str) -> tuple[int, str] | None:
    """(size, note) of the first checkpoint that holds entry number `index`, that `key` of the log signed and that
    witnesses have cosigned, with their signatures; None while there is none."""
    rows = LogCheckpoint.objects.filter(size__gt=index, key__vkey=key, cosignatures__isnull=False)
    row = rows.order_by("size").first()
    return None if row is None else (row.size, row.note + "".join(f"{each.line}\n" for each in row.cosignatures.all()))


def inclusion(index: int, *, size: int) -> list[bytes]:
    """The path from entry number `index` to the root of `size` entries. Raises LogFault."""
    return nodes(size).inclusion(index, size)


def consistency(*, to: int, sizes: Iterable[int]) -> dict[int, list[bytes]]:
    """For each of `sizes` the proof (RFC 6962, 2.1.2) that the tree of `to` leaves began as the tree of that size.

    Raises LogFault when there are fewer leaves, and ValueError for a size beyond `to`.
    """
    tree = nodes(to)
    return {size: tree.consistency(size, to) for size in sorted(set(sizes))}


def export(path: Path) -> int:
    """Write the whole log to a file, which is what anyone needs to rebuild its tree without this database: every entry
    up to a checkpoint made now, in the tree's order, its exact bytes and a line end each, and the checkpoint next to it
    as `<path>.checkpoint`. Returns how many entries.

    Raises DataError when one of the files exists or cannot be written.
    """
    head = checkpoint()
    checkpoint_path = path.with_name(f"{path.name}.checkpoint")
    statement = (
        "SELECT entry.body FROM audit_auditleaf AS leaf JOIN audit_auditentry AS entry ON entry.id = leaf.entry_id "
        "WHERE leaf.idx < %s ORDER BY leaf.idx"
    )
    count = 0
    try:
        with path.open("xb") as lines, connection.chunked_cursor() as cursor:
            cursor.execute(statement, [head.size])
            while rows := cursor.fetchmany(READ_ROWS):
                count += len(rows)
                lines.writelines(bytes(body) + b"\n" for (body,) in rows)
            lines.flush()
            os.fsync(lines.fileno())
        with checkpoint_path.open("x", encoding="utf-8") as note:
            note.write(head.note)
    except FileExistsError as error:
        raise DataError(f"{error.filename} is there already; give another name") from None
    except OSError as error:
        raise DataError(f"cannot write {error.filename or path}: {error.strerror}") from None
    if count != head.size:
        raise LogFault(f"{count:,} entries were found of the {head.size:,} of the checkpoint: see `check`")
    return count


# ---------------------------------------------------------------------- another key


def rotate() -> tuple[SigningKey, LogCheckpoint]:
    """Replace the log's signing key. Returns the key that signs from now on, and the checkpoint that both have signed.
    Raises KeyFault and LogFault.

    The new key's file is there before the statement is committed, and the old one's until both have signed one
    checkpoint; a command that was interrupted in between is finished by the next one.
    """
    path = environment().signing_key_path
    old = signing_key()
    new_path = keys.next_path(path)
    if new_path.exists() and load(new_path, old.name).vkey == old.vkey:  # interrupted after its statement
        keys.rotation_finish(path)
    elif new_path.exists():  # interrupted before it
        new_path.unlink()
    if keys.previous_path(path).exists():
        checkpoint()
        keys.previous_path(path).unlink()
    checkpoint()  # by the old key alone, so that it is known to the log
    new = generate(old.name)
    new.write(new_path)
    rotate_key(old=old, new=new)
    keys.rotation_finish(path)
    row = checkpoint()
    keys.previous_path(path).unlink()
    return new, row


@transaction.atomic(durable=True)
def rotate_key(*, old: SigningKey, new: SigningKey) -> None:
    """Record that `new` follows `old`, with the statement that `old` signs; the next checkpoint is signed by both,
    while both files are there."""
    size = _locked_head().size
    statement = rotation(old, new.public_key, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    log(
        actor="platform",
        kind="log_key_rotated",
        subject=f"log:{new.name}",
        before={"key": old.vkey},
        after={"key": new.vkey},
        data={"rotation": statement},
    )
    LogKey.objects.create(vkey=new.vkey, since_size=size, at=Now(), rotation=statement)
    _log.info("the audit log's key %s was replaced by %s", old.key_id, new.key_id)
