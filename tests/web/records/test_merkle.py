"""Merkle trees against RFC 6962's published vectors (Certificate Transparency's merkle_tree_test, in tests/cases), and
every proof of every size up to 70."""

import hashlib

import pytest
import yaml

from cohort.evidence.merkle import EMPTY_ROOT, Nodes, leaf_hash, node_hash, root, verify_consistency, verify_inclusion
from tests.tables import FOLDER, cases

INPUTS = [
    one["input"] for one in yaml.safe_load((FOLDER / "evidence" / "merkle_roots.yaml").read_text()) if one["input"]
]
LEAVES = [leaf_hash(b""), *(leaf_hash(bytes.fromhex(text)) for text in INPUTS)]
MOST = 70
MANY = [leaf_hash(str(n).encode()) for n in range(MOST)]


def by_definition(leaves: list[bytes]) -> bytes:
    """MTH as RFC 6962 writes it, section 2.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + by_definition(leaves[:k]) + by_definition(leaves[k:])).digest()


@pytest.mark.parametrize(("published", "input"), cases("evidence/merkle_roots", "root", "input"))
def test_published_roots(published: str, input: str | None) -> None:
    """Of the inputs up to this one; of the empty tree, where there is none."""
    size = 0 if input is None else 1 if input == "" else INPUTS.index(input) + 2
    assert Nodes(LEAVES).root(size).hex() == root(LEAVES[:size]).hex() == published


@pytest.mark.parametrize(("kind", "old", "new", "path"), cases("evidence/merkle_proofs", "kind", "old", "new", "path"))
def test_published_proofs(kind: str, old: int, new: int, path: list[str]) -> None:
    assert [one.hex() for one in getattr(Nodes(LEAVES), kind)(old, new)] == path


def test_roots_are_those_of_the_definition() -> None:
    grown = Nodes()
    for size in range(MOST + 1):
        assert grown.root() == Nodes(MANY).root(size) == root(iter(MANY[:size])) == by_definition(MANY[:size])
        assert len(grown) == size
        grown.extend(MANY[size : size + 1])


def test_every_inclusion_proof_and_no_other() -> None:
    nodes = Nodes(MANY)
    for size in range(1, MOST + 1):
        whole = nodes.root(size)
        for index in range(size):
            path = nodes.inclusion(index, size)
            wrong = (
                [[*path, whole]] + [[*path[:-1], bytes(32)], path[:-1]] * bool(path) + [path[::-1]] * (len(path) > 1)
            )
            assert verify_inclusion(MANY[index], index, size, path, whole)
            assert not any(verify_inclusion(MANY[index], index, size, other, whole) for other in wrong)
            assert not any(verify_inclusion(MANY[index], at, size, path, whole) for at in (index - 1, index + 1, size))
            assert not verify_inclusion(MANY[index - 1], index, size, path, whole) or size == 1


def test_every_consistency_proof_and_no_other() -> None:
    nodes = Nodes(MANY)
    roots = [nodes.root(size) for size in range(MOST + 1)]
    for new in range(MOST + 1):
        for old in range(new + 1):
            path = nodes.consistency(old, new)
            wrong = [[*path, bytes(32)]] + [path[:-1], [bytes(32), *path[1:]], []] * (0 < old < new)
            assert verify_consistency(old, new, path, roots[old], roots[new])
            assert not any(verify_consistency(old, new, other, roots[old], roots[new]) for other in wrong)
            assert not old or not verify_consistency(old, new, path, roots[old - 1], roots[new])
            assert not 0 < old < new or not verify_consistency(old, new, path, roots[old], roots[new - 1])


def test_a_forked_tree_is_not_consistent() -> None:
    forked = Nodes([*MANY[:40], leaf_hash(b"another"), *MANY[41:]])
    true = Nodes(MANY)
    assert verify_consistency(40, 70, forked.consistency(40, 70), true.root(40), forked.root(70))
    assert not verify_consistency(41, 70, forked.consistency(41, 70), true.root(41), forked.root(70))
    assert not verify_consistency(41, 70, true.consistency(41, 70), true.root(41), forked.root(70))


def test_a_node_cannot_be_passed_off_as_a_leaf() -> None:
    """The second preimage that the two prefixes are for: a tree of two over inner nodes' bytes has another root."""
    a, b, c, d = LEAVES[:4]
    left, right = node_hash(a, b), node_hash(c, d)
    whole = root([a, b, c, d])
    assert not verify_inclusion(leaf_hash(a + b), 0, 2, [right], whole)
    assert root([leaf_hash(a + b), leaf_hash(c + d)]) != whole
    # the inner hash itself does lead there: whoever checks hashes the data of a leaf, and never takes a hash for one
    assert verify_inclusion(left, 0, 2, [right], whole)


def test_empty_trees_and_hashes_of_another_length() -> None:
    assert Nodes().root() == EMPTY_ROOT == root([])
    assert verify_consistency(0, 1, [], EMPTY_ROOT, MANY[0])
    assert not verify_consistency(0, 1, [], bytes(32), MANY[0])
    assert verify_inclusion(MANY[0], 0, 1, [], MANY[0])
    assert not verify_inclusion(MANY[0], 0, 0, [], EMPTY_ROOT)
    assert not verify_inclusion(b"short", 0, 1, [], b"short")
    assert not verify_consistency(1, 1, [], b"short", b"short")
    with pytest.raises(ValueError, match="32 bytes"):
        Nodes([b"short"])


@pytest.mark.parametrize(("index", "size"), [(3, 3), (-1, 3), (0, 0), (0, 9)])
def test_no_proof_of_what_is_not_there(index: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"leaves|leaf"):
        Nodes(LEAVES).inclusion(index, size)
    with pytest.raises(ValueError, match="never one"):
        Nodes(LEAVES).consistency(4, 3)
