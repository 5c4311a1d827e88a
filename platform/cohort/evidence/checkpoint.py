"""Checkpoints of a log (c2sp.org/tlog-checkpoint): its name, its size, its root, and the keys that sign it one after
the other. Signed, they are notes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cohort.evidence import keys
from cohort.evidence.keys import KeyFault, PublicKey, SigningKey, parse_vkey
from cohort.evidence.merkle import EMPTY_ROOT, HASH_BYTES
from cohort.evidence.note import NoteError, open_note, sign_note

# A key replaced by the next: a note signed by the old key that names the new one. A chain of them leads from a key that
# somebody trusts to the one in use today.

_FIRST = "cohort key rotation v1"
_TEXT = re.compile(_FIRST + r"\nold (?P<old>[^\n]+)\nnew (?P<new>[^\n]+)\nat (?P<at>[^\n]+)\n")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class RotationError(ValueError):
    """An invalid statement, or one that does not follow from the key before it."""


@dataclass(frozen=True, slots=True)
class Rotation:
    old: PublicKey
    new: PublicKey
    at: str


def rotation(old: SigningKey, new: PublicKey, at: str) -> str:
    """The signed statement. `at` is UTC as 2026-11-22T10:00:00Z. Raises RotationError."""
    _moment(at)
    if new.vkey == old.vkey:
        raise RotationError("the new key is the old one")
    return sign_note(f"{_FIRST}\nold {old.vkey}\nnew {new.vkey}\nat {at}\n", [old])


def parse_rotation(statement: str, old: PublicKey) -> Rotation:
    """The statement's content, when `old` signed it. Raises RotationError."""
    try:
        opened = open_note(statement, [old])
        match = _TEXT.fullmatch(opened.text)
        if match is None or match["old"] != old.vkey or opened.unknown:
            raise RotationError(f"is no statement that the key {old.name!a} ({old.key_id}) was replaced")
        return Rotation(old, parse_vkey(match["new"]), _moment(match["at"]))
    except (NoteError, KeyFault) as error:
        raise RotationError(str(error)) from None


def follow(first: PublicKey, statements: Sequence[str]) -> list[PublicKey]:
    """[first, the key after it, …, the newest]. Raises RotationError naming the statement that does not follow."""
    keys = [first]
    for number, statement in enumerate(statements, start=1):
        try:
            new = parse_rotation(statement, keys[-1]).new
        except RotationError as error:
            raise RotationError(f"rotation {number}: {error}") from None
        if new in keys:
            raise RotationError(f"rotation {number}: leads back to a key before it")
        keys.append(new)
    return keys


def _moment(at: str) -> str:
    try:
        if not _AT.fullmatch(at):
            raise ValueError
        datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise RotationError(f"{at[:60]!a} is not a moment in UTC such as 2026-11-22T10:00:00Z") from None
    return at


_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_ORIGIN = re.compile("[^\x00-\x1f\x7f]{1,500}")


class CheckpointError(ValueError):
    """A text that is no checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    origin: str
    """Name of the log."""
    size: int
    """Leaves."""
    root: bytes
    """32 bytes."""

    def text(self) -> str:
        """The note's text, unsigned."""
        return f"{self.origin}\n{self.size}\n{keys.encode(self.root)}\n"


def open_checkpoint(note: str, keys: Sequence[PublicKey]) -> Checkpoint:
    """The checkpoint that at least one of `keys` signed. Raises NoteError, CheckpointError."""
    return parse(open_note(note, keys).text)


def parse(text: str) -> Checkpoint:
    """Raises CheckpointError. Lines beyond the three are refused: this log writes none."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3]:
        raise CheckpointError("is no checkpoint of three lines: origin, size, root")
    origin, size, root_text, _ = lines
    if not _ORIGIN.fullmatch(origin):
        raise CheckpointError("has no origin")
    if not _SIZE.fullmatch(size):
        raise CheckpointError(f"{size[:30]!a} is not the size of a log")
    try:
        root = keys.decode(root_text, HASH_BYTES)
    except ValueError as error:
        raise CheckpointError(f"its root: {error}") from None
    if size == "0" and root != EMPTY_ROOT:
        raise CheckpointError("is of an empty log and has another root than that of one")
    return Checkpoint(origin, int(size), root)
