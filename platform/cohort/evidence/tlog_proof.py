"""Proof that an entry is in a log, in one text that needs no network (c2sp.org/tlog-proof)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.evidence import strict_base64
from cohort.evidence.merkle import HASH_BYTES

FIRST_LINE = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,18})")
_MOST_HASHES = 63


class ProofError(ValueError):
    """A text that is no proof."""


@dataclass(frozen=True, slots=True)
class Proof:
    index: int
    path: tuple[bytes, ...]
    """From the leaf's sibling to the root's child."""
    checkpoint: str
    """The signed note, as it stands."""
    extra: bytes | None = None
    """Opaque, under no signature: never to be trusted."""


def write(index: int, path: Sequence[bytes], checkpoint_note: str, extra: bytes | None = None) -> str:
    lines = [FIRST_LINE]
    if extra is not None:
        lines.append(f"extra {strict_base64.encode(extra)}")
    lines += [f"index {index}", *(strict_base64.encode(digest) for digest in path), "", checkpoint_note]
    return "\n".join(lines)


def parse(text: str) -> Proof:
    """Raises ProofError."""
    head, blank, note = text.partition("\n\n")
    lines = head.split("\n")
    if not blank or lines.pop(0) != FIRST_LINE:
        raise ProofError(f"does not begin with {FIRST_LINE!a} and end with a checkpoint")
    extra = None
    try:
        if lines and lines[0].startswith("extra "):
            extra = strict_base64.decode(lines.pop(0).removeprefix("extra "))
        index = _INDEX.fullmatch(lines.pop(0) if lines else "")
        if index is None:
            raise ProofError("has no line `index N`")
        if len(lines) > _MOST_HASHES:
            raise ProofError(f"has more than {_MOST_HASHES} hashes")
        path = tuple(strict_base64.decode(line, HASH_BYTES) for line in lines)
    except ProofError:
        raise
    except ValueError as error:
        raise ProofError(str(error)) from None
    return Proof(int(index[1]), path, note, extra)
