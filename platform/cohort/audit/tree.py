"""The log's Merkle tree as the database holds it: leaves in a table, and the hashes needed to continue in one row."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from django.db import connection

from cohort.audit.models import TreeHead
from cohort.evidence.merkle import Nodes, Peaks
from grpo_core.errors import GrpoError

READ_ROWS = 5_000


class LogFault(GrpoError):
    """The log is not what it was: rows were changed, dropped or put in another order. The message names the first."""

    code: ClassVar[str] = "log_fault"


def peaks_of(head: TreeHead) -> Peaks:
    """Raises LogFault for a head that cannot be."""
    try:
        return Peaks(head.size, bytes(head.peaks))
    except ValueError as error:
        raise LogFault(f"the tree's head is spoilt: {error}") from None


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
