"""Checkpoints and proofs of inclusion as texts: the examples of C2SP, and nothing that could be read in two ways."""

import pytest

from cohort.evidence import checkpoint, tlog_proof
from cohort.evidence.checkpoint import Checkpoint, CheckpointError
from cohort.evidence.merkle import EMPTY_ROOT, leaf_hash
from cohort.evidence.tlog_proof import ProofError

EXAMPLE = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
"""c2sp.org/tlog-checkpoint"""
ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
NOTE = f"{EXAMPLE}\n— example.com/behind-the-sofa AAAAAAAA\n"


def test_the_example_of_the_specification() -> None:
    found = checkpoint.parse(EXAMPLE)
    assert (found.origin, found.size, found.root.hex()[:8]) == ("example.com/behind-the-sofa", 20852163, "0ac5186a")
    assert found.text() == EXAMPLE


def test_an_empty_log() -> None:
    empty = Checkpoint("a", 0, EMPTY_ROOT)
    assert checkpoint.parse(empty.text()) == empty
    with pytest.raises(CheckpointError, match="empty log"):
        checkpoint.parse(f"a\n0\n{ROOT}\n")


@pytest.mark.parametrize(
    "text",
    ["", "a", "a\n1\n", f"\n1\n{ROOT}\n", f"a\n01\n{ROOT}\n", f"a\n-1\n{ROOT}\n", f"a\n1.0\n{ROOT}\n", f"a\n1\n{ROOT}",
     f"a\n1\n{ROOT}\nmore\n", f"a\n1\n{ROOT}\n\n", f"a\n 1\n{ROOT}\n", f"a\n1\n{ROOT[:-1]}\n", "a\n1\nAAAA\n",
     f"a\n1\n{ROOT[:-2]}J=\n", f"a\n{'9' * 20}\n{ROOT}\n", f"a\n१\n{ROOT}\n", f"a\x00\n1\n{ROOT}\n"],
)  # fmt: skip
def test_what_is_no_checkpoint(text: str) -> None:
    with pytest.raises(CheckpointError):
        checkpoint.parse(text)


def test_a_proof_there_and_back() -> None:
    path = [leaf_hash(b"a"), leaf_hash(b"b")]
    text = tlog_proof.write(73894, path, NOTE)
    assert text.splitlines()[:2] == ["c2sp.org/tlog-proof@v1", "index 73894"]
    found = tlog_proof.parse(text)
    assert (found.index, list(found.path), found.checkpoint, found.extra) == (73894, path, NOTE, None)
    with_extra = tlog_proof.write(0, [], NOTE, b"opaque")
    assert with_extra.splitlines()[1] == "extra b3BhcXVl"
    assert tlog_proof.parse(with_extra) == tlog_proof.Proof(0, (), NOTE, b"opaque")


@pytest.mark.parametrize(
    "head",
    ["", "c2sp.org/tlog-proof@v2\nindex 1", "c2sp.org/tlog-proof@v1", "c2sp.org/tlog-proof@v1\nindex 01",
     "c2sp.org/tlog-proof@v1\nindex -1", "c2sp.org/tlog-proof@v1\nindex", "c2sp.org/tlog-proof@v1\nindex 1 ",
     "c2sp.org/tlog-proof@v1\nextra !\nindex 1", "c2sp.org/tlog-proof@v1\nindex 1\nAAAA",
     "c2sp.org/tlog-proof@v1\nindex 1\nextra b3BhcXVl", "c2sp.org/tlog-proof@v1\nindex 1\nindex 1",
     f"c2sp.org/tlog-proof@v1\nindex 1\n{ROOT} ", "c2sp.org/tlog-proof@v1\nindex 1" + f"\n{ROOT}" * 64,
     "\nc2sp.org/tlog-proof@v1\nindex 1", "c2sp.org/tlog-proof@v1\r\nindex 1"],
)  # fmt: skip
def test_what_is_no_proof(head: str) -> None:
    with pytest.raises(ProofError):
        tlog_proof.parse(f"{head}\n\n{NOTE}")
    with pytest.raises(ProofError):
        tlog_proof.parse(head)
