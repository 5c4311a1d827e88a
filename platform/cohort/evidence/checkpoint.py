"""Checkpoints of a log (c2sp.org/tlog-checkpoint): its name, its size, its root. Signed, they are notes."""

import re
from dataclasses import dataclass

from cohort.evidence import strict_base64
from cohort.evidence.merkle import EMPTY_ROOT, HASH_BYTES

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
        return f"{self.origin}\n{self.size}\n{strict_base64.encode(self.root)}\n"


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
        root = strict_base64.decode(root_text, HASH_BYTES)
    except ValueError as error:
        raise CheckpointError(f"its root: {error}") from None
    if size == "0" and root != EMPTY_ROOT:
        raise CheckpointError("is of an empty log and has another root than that of one")
    return Checkpoint(origin, int(size), root)
