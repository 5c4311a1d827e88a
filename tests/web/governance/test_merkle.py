"""Merkle trees against RFC 6962's published vectors, and every proof of every size up to 130."""

import hashlib

import pytest

from cohort.evidence.merkle import (
    EMPTY_ROOT,
    Nodes,
    leaf_hash,
    node_hash,
    root,
    verify_consistency,
    verify_inclusion,
)

INPUTS = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
"""Of the first n of these inputs, as in the tests of Certificate Transparency's own log (merkle_tree_test)."""
PATHS = (
    (0, 8, ("96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4")),
    (5, 8, ("bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7")),
    (2, 3, ("fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",)),
)  # fmt: skip
CONSISTENCY = (
    (1, 8, ("96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4")),
    (6, 8, ("0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7")),
    (2, 5, ("5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b")),
)  # fmt: skip
LEAVES = [leaf_hash(bytes.fromhex(text)) for text in INPUTS]
MOST = 130
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


@pytest.mark.parametrize("size", range(9))
def test_published_roots(size: int) -> None:
    assert Nodes(LEAVES).root(size).hex() == ROOTS[size]
    assert root(LEAVES[:size]).hex() == ROOTS[size]


def test_published_proofs() -> None:
    nodes = Nodes(LEAVES)
    for index, size, path in PATHS:
        assert [one.hex() for one in nodes.inclusion(index, size)] == list(path)
    for old, new, path in CONSISTENCY:
        assert [one.hex() for one in nodes.consistency(old, new)] == list(path)


def test_roots_are_those_of_the_definition() -> None:
    nodes = Nodes(MANY)
    for size in range(MOST + 1):
        assert nodes.root(size) == root(iter(MANY[:size])) == by_definition(MANY[:size])


def test_every_inclusion_proof_up_to_130_and_no_other() -> None:
    nodes = Nodes(MANY)
    for size in range(1, MOST + 1):
        whole = nodes.root(size)
        for index in range(size):
            path = nodes.inclusion(index, size)
            assert verify_inclusion(MANY[index], index, size, path, whole)
            assert not verify_inclusion(MANY[index], index, size, [*path, whole], whole)
            assert not verify_inclusion(MANY[index - 1], index, size, path, whole) or size == 1
            for other in (index - 1, index + 1, size):
                assert not verify_inclusion(MANY[index], other, size, path, whole)
            if path:
                assert not verify_inclusion(MANY[index], index, size, path[:-1], whole)
                assert not verify_inclusion(MANY[index], index, size, [*path[:-1], bytes(32)], whole)
                assert not verify_inclusion(MANY[index], index, size, path[::-1], whole) or len(path) == 1


def test_every_consistency_proof_up_to_130_and_no_other() -> None:
    nodes = Nodes(MANY)
    roots = [nodes.root(size) for size in range(MOST + 1)]
    for new in range(MOST + 1):
        for old in range(new + 1):
            path = nodes.consistency(old, new)
            assert verify_consistency(old, new, path, roots[old], roots[new])
            assert not verify_consistency(old, new, [*path, bytes(32)], roots[old], roots[new])
            if old:
                assert not verify_consistency(old, new, path, roots[old - 1], roots[new])
            if 0 < old < new:
                assert not verify_consistency(old, new, path, roots[old], roots[new - 1])
                assert not verify_consistency(old, new, path[:-1], roots[old], roots[new])
                assert not verify_consistency(old, new, [bytes(32), *path[1:]], roots[old], roots[new])
                assert not verify_consistency(old, new, [], roots[old], roots[new])


def test_any_bit_of_a_proof_matters() -> None:
    nodes = Nodes(MANY)
    path, whole, was = nodes.inclusion(70, 100), nodes.root(100), nodes.root(70)
    grown = nodes.consistency(70, 100)
    for at in range(len(path)):
        for byte in range(32):
            bent = bytearray(path[at])
            bent[byte] ^= 1
            assert not verify_inclusion(MANY[70], 70, 100, [*path[:at], bytes(bent), *path[at + 1 :]], whole)
    for at in range(len(grown)):
        for byte in range(32):
            bent = bytearray(grown[at])
            bent[byte] ^= 1
            assert not verify_consistency(70, 100, [*grown[:at], bytes(bent), *grown[at + 1 :]], was, whole)


def test_a_forked_tree_is_not_consistent() -> None:
    forked = Nodes([*MANY[:40], leaf_hash(b"another"), *MANY[41:]])
    true = Nodes(MANY)
    assert verify_consistency(40, 100, forked.consistency(40, 100), true.root(40), forked.root(100))
    assert not verify_consistency(41, 100, forked.consistency(41, 100), true.root(41), forked.root(100))
    assert not verify_consistency(41, 100, true.consistency(41, 100), true.root(41), forked.root(100))


def test_a_node_cannot_be_passed_off_as_a_leaf() -> None:
    """The second preimage that the two prefixes are for: a tree of two over inner nodes' bytes has another root."""
    a, b, c, d = LEAVES[:4]
    left, right = node_hash(a, b), node_hash(c, d)
    whole = root([a, b, c, d])
    assert not verify_inclusion(leaf_hash(a + b), 0, 2, [right], whole)
    assert root([leaf_hash(a + b), leaf_hash(c + d)]) != whole
    # the inner hash itself does lead there: whoever checks hashes the data of a leaf, and never takes a hash for one
    assert verify_inclusion(left, 0, 2, [right], whole)


def test_empty_tree_and_one_leaf() -> None:
    assert Nodes().root() == EMPTY_ROOT == root([])
    assert verify_consistency(0, 1, [], EMPTY_ROOT, MANY[0])
    assert not verify_consistency(0, 1, [], bytes(32), MANY[0])
    assert verify_inclusion(MANY[0], 0, 1, [], MANY[0])
    assert not verify_inclusion(MANY[0], 0, 0, [], EMPTY_ROOT)


def test_hashes_of_another_length_are_refused() -> None:
    assert not verify_inclusion(b"short", 0, 1, [], b"short")
    assert not verify_consistency(1, 1, [], b"short", b"short")
    with pytest.raises(ValueError, match="32 bytes"):
        Nodes([b"short"])


@pytest.mark.parametrize(("index", "size"), [(3, 3), (-1, 3), (0, 0), (0, 9)])
def test_no_proof_of_what_is_not_there(index: int, size: int) -> None:
    with pytest.raises(ValueError):
        Nodes(LEAVES).inclusion(index, size)
    with pytest.raises(ValueError):
        Nodes(LEAVES).consistency(4, 3)


def test_growing_gives_the_same_tree() -> None:
    nodes = Nodes()
    for size, leaf in enumerate(MANY, start=1):
        nodes.extend([leaf])
        assert len(nodes) == size
        assert nodes.root() == root(MANY[:size])
