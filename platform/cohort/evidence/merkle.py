"""Merkle trees as in RFC 6962 (section 2.1): root, inclusion and consistency proofs, their checks (RFC 9162), and
the file of a proof.

Leaf H(0x00 ‖ data), node H(0x01 ‖ left ‖ right), H = SHA-256; all hashes are 32 bytes. The two prefixes keep a
node from being passed off as a leaf.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cohort.evidence import keys

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Peaks:
    """A tree that only grows at its end: the hashes of its complete subtrees, the largest first, and nothing else."""

    def __init__(self, size: int = 0, packed: bytes = b"") -> None:
        """Raises ValueError when `packed` cannot be those of `size` leaves."""
        if len(packed) != HASH_BYTES * size.bit_count():
            raise ValueError(f"{len(packed)} bytes cannot be of {size:,} leaves")
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


def root(leaf_hashes: Iterable[bytes]) -> bytes:
    """Root of the tree over leaf hashes, reading them once; needs memory for log2(n) hashes."""
    peaks = Peaks()
    for leaf in leaf_hashes:
        peaks.append(leaf)
    return peaks.root()


class Nodes:
    """The complete subtrees of a growing tree, kept, so that every root and proof costs O(log n)."""

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        """_levels[h][i]: hash over the leaves i·2^h to (i + 1)·2^h − 1."""
        self.extend(leaf_hashes)

    def __len__(self) -> int:
        return len(self._levels[0])

    def extend(self, leaf_hashes: Iterable[bytes]) -> None:
        """Append leaves. Raises ValueError for a hash that has not 32 bytes."""
        for leaf in leaf_hashes:
            if len(leaf) != HASH_BYTES:
                raise ValueError(f"a leaf hash has {HASH_BYTES} bytes, not {len(leaf)}")
            self._levels[0].append(leaf)
            height = 0
            while len(self._levels[height]) % 2 == 0:
                if height + 1 == len(self._levels):
                    self._levels.append([])
                self._levels[height + 1].append(node_hash(*self._levels[height][-2:]))
                height += 1

    def root(self, size: int | None = None) -> bytes:
        """Root of the first `size` leaves; of all, without. Raises ValueError when there are fewer."""
        size = self._bounded(len(self) if size is None else size)
        return self._over(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """PATH(index, first `size` leaves), from the leaf's sibling to the root's child. Raises ValueError."""
        if not 0 <= index < self._bounded(size):
            raise ValueError(f"there is no leaf {index} in a tree of {size}")
        path: list[bytes] = []
        start, end = 0, size
        while end - start > 1:
            middle = start + _split(end - start)
            if index < middle:
                path.append(self._over(middle, end))
                end = middle
            else:
                path.append(self._over(start, middle))
                start = middle
        return path[::-1]

    def consistency(self, old: int, new: int) -> list[bytes]:
        """PROOF(old, first `new` leaves): that the tree of `new` began as the tree of `old`. Empty for an old tree
        without leaves and for equal sizes. Raises ValueError."""
        if not 0 <= old <= self._bounded(new):
            raise ValueError(f"a tree of {new} leaves was never one of {old}")
        if old in (0, new):
            return []
        path: list[bytes] = []
        start, end, whole = 0, new, True
        while old != end:
            middle = start + _split(end - start)
            if old <= middle:
                path.append(self._over(middle, end))
                end = middle
            else:
                path.append(self._over(start, middle))
                start, whole = middle, False
        if not whole:
            path.append(self._over(start, end))
        return path[::-1]

    def _bounded(self, size: int) -> int:
        if not 0 <= size <= len(self):
            raise ValueError(f"the tree has {len(self)} leaves, not {size}")
        return size

    def _over(self, start: int, end: int) -> bytes:
        """Hash over the leaves start to end − 1, where `start` is a multiple of the smallest power of 2 that is at
        least end − start."""
        size = end - start
        if size & (size - 1) == 0:
            height = size.bit_length() - 1
            return self._levels[height][start >> height]
        middle = start + _split(size)
        return node_hash(self._over(start, middle), self._over(middle, end))


def _split(size: int) -> int:
    """The largest power of 2 below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether leaf hash `leaf` is number `index` in the tree of `size` leaves with this root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or not _hashes(leaf, root, *path):
        return False
    first, last, digest = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if first & 1 or first == last:
            digest = node_hash(sibling, digest)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            digest = node_hash(digest, sibling)
        first, last = first >> 1, last >> 1
    return last == 0 and digest == root


def verify_consistency(old_size: int, new_size: int, path: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Whether the tree of `new_size` began as that of `old_size` (RFC 9162, 2.1.4.2). Every tree began empty."""
    if not 0 <= old_size <= new_size or not _hashes(old_root, new_root, *path):
        return False
    if old_size == new_size:
        return not path and old_root == new_root
    if old_size == 0:
        return not path and old_root == EMPTY_ROOT
    hashes = [old_root, *path] if old_size & (old_size - 1) == 0 else list(path)
    return consistency_roots(old_size, new_size, hashes) == (old_root, new_root)


def consistency_roots(old_size: int, new_size: int, hashes: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The roots of both sizes that a consistency proof works out to; None for another length. For an old size that is a
    power of 2, its root comes before the proof."""
    if not hashes:
        return None
    first, last = old_size - 1, new_size - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    was = now = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            return None
        if first & 1 or first == last:
            was, now = node_hash(sibling, was), node_hash(sibling, now)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            now = node_hash(now, sibling)
        first, last = first >> 1, last >> 1
    return (was, now) if last == 0 else None


def _hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)


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
    """The signed note, as it is written."""
    extra: bytes | None = None
    """Opaque, under no signature: never to be trusted."""


def write(index: int, path: Sequence[bytes], checkpoint_note: str, extra: bytes | None = None) -> str:
    head = [FIRST_LINE] if extra is None else [FIRST_LINE, f"extra {keys.encode(extra)}"]
    hashes = (keys.encode(digest) for digest in path)
    return "\n".join([*head, f"index {index}", *hashes, "", checkpoint_note])


def parse(text: str) -> Proof:
    """Raises ProofError."""
    head, blank, note = text.partition("\n\n")
    lines = head.split("\n")
    if not blank or lines.pop(0) != FIRST_LINE:
        raise ProofError(f"does not begin with {FIRST_LINE!a} and end with a checkpoint")
    extra = None
    try:
        if lines and lines[0].startswith("extra "):
            extra = keys.decode(lines.pop(0).removeprefix("extra "))
        index = _INDEX.fullmatch(lines.pop(0) if lines else "")
        if index is None:
            raise ProofError("has no line `index N`")
        if len(lines) > _MOST_HASHES:
            raise ProofError(f"has more than {_MOST_HASHES} hashes")
        path = tuple(keys.decode(line, HASH_BYTES) for line in lines)
    except ProofError:
        raise
    except ValueError as error:
        raise ProofError(str(error)) from None
    return Proof(int(index[1]), path, note, extra)
