"""The log's Merkle tree as the database holds it: leaves in a table, and the hashes needed to continue in one row."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from django.db import connection

from cohort.evidence.merkle import EMPTY_ROOT, HASH_BYTES, Nodes, node_hash
from grpo_core.errors import GrpoError

READ_ROWS = 5_000


class LogFault(GrpoError):
    """The log is not what it was: rows were changed, dropped or put in another order. The message names the first."""

    code: ClassVar[str] = "log_fault"


class Peaks:
    """A tree that only grows at its end: the hashes of its complete subtrees, the largest first, and nothing else."""

    def __init__(self, size: int = 0, packed: bytes = b"") -> None:
        """Raises LogFault when `packed` cannot be those of `size` leaves."""
        if len(packed) != HASH_BYTES * size.bit_count():
            raise LogFault(f"the tree's head is spoilt: {len(packed)} bytes cannot be of {size:,} leaves")
        self.size = size
        self._peaks = [packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES)]

    def append(self, leaf: bytes) -> None:
        size = self.size
        while size & 1:
            leaf = node_hash(self._peaks.pop(), leaf)
            size >>= 1
        self._peaks.append(leaf)
        self.size += 1

    def packed(self) -> bytes:
        return b"".join(self._peaks)

    def root(self) -> bytes:
        """32 bytes."""
        if not self._peaks:
            return EMPTY_ROOT
        digest = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            digest = node_hash(peak, digest)
        return digest


def stored_leaves(size: int) -> Iterator[bytes]:
    """The first `size` leaf hashes. Raises LogFault where one is missing."""
    expected = 0
    with connection.chunked_cursor() as cursor:
        cursor.execute("SELECT idx, leaf FROM audit_auditleaf WHERE idx < %s ORDER BY idx", [size])
        while rows := cursor.fetchmany(READ_ROWS):
            for idx, leaf in rows:
                if idx != expected:
                    raise LogFault(f"leaf {expected:,} is missing")
                expected += 1
                yield bytes(leaf)
    if expected != size:
        raise LogFault(f"the log was cut: leaf {expected:,} is missing, of {size:,}")


def nodes(size: int) -> Nodes:
    """Every complete subtree of the first `size` leaves. Raises LogFault."""
    return Nodes(stored_leaves(size))


def roots(sizes: Iterable[int]) -> dict[int, bytes]:
    """The roots at these sizes, by reading the leaves once. Raises LogFault."""
    ordered = sorted(set(sizes))
    by_size: dict[int, bytes] = {}
    peaks = Peaks()
    leaves = stored_leaves(ordered[-1]) if ordered else iter(())
    for size in ordered:
        while peaks.size < size:
            peaks.append(next(leaves))
        by_size[size] = peaks.root()
    return by_size
