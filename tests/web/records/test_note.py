"""Keys, signed notes, checkpoints, proofs and key rotations: as C2SP specifies them, with no second spelling."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cohort.evidence import checkpoint, keys, merkle
from cohort.evidence.checkpoint import Checkpoint, CheckpointError
from cohort.evidence.keys import KeyFault, parse_vkey
from cohort.evidence.merkle import EMPTY_ROOT, ProofError, leaf_hash
from cohort.evidence.note import NoteError, open_note, sign_note
from tests.factories.small_cards import key
from tests.tables import cases

GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
"""The example in the documentation of Go's package golang.org/x/mod/sumdb/note."""
CHECKPOINT = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
"""c2sp.org/tlog-checkpoint"""
AT = "2026-11-22T10:00:00Z"

FIRST, SECOND = key("one", "one.example/log"), key("two", "two.example/log")
BOTH = [FIRST.public_key, SECOND.public_key]


def every_flip(text: str, opened: Callable[[str], object]) -> None:
    """No byte of `text` can change without `opened` refusing it."""
    content = text.encode()
    for place in range(len(content)):
        for bit in (0x01, 0x04, 0x20, 0x80):
            bent = bytearray(content)
            bent[place] ^= bit
            try:
                changed = bytes(bent).decode()
            except UnicodeDecodeError:
                continue  # no text at all
            with pytest.raises((ValueError, KeyFault)):
                opened(changed)


def no_unknown(text: str) -> None:
    if open_note(text, BOTH).unknown:
        raise NoteError("a signature that nobody checks")


def test_every_byte_matters() -> None:
    every_flip(FIRST.vkey, parse_vkey)
    every_flip(sign_note("a text − with\n\nlines\n", [FIRST]), lambda text: open_note(text, BOTH[:1]))
    every_flip(sign_note("text\n", [FIRST, SECOND]), no_unknown)
    moved = checkpoint.rotation(FIRST, SECOND.public_key, AT)
    every_flip(moved, lambda text: checkpoint.parse_rotation(text, FIRST.public_key))


# ---------------------------------------------------------------------- keys


def test_key_id_by_its_definition() -> None:
    digest = hashlib.sha256(b"one.example/log\n\x01" + FIRST.public_key.public).hexdigest()
    assert FIRST.key_id == digest[:8]
    packed = base64.b64encode(b"\x01" + FIRST.public_key.public).decode()
    assert FIRST.vkey == f"one.example/log+{digest[:8]}+{packed}"
    assert parse_vkey(FIRST.vkey) == FIRST.public_key


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u2028b", "\x1b[2J", "x" * 201, "\ud800"], ids=ascii)
def test_names_that_no_key_can_have(name: str) -> None:
    with pytest.raises(KeyFault, match="cannot name a key"):
        keys.generate(name)


def test_a_key_keeps_its_name_in_its_file(tmp_path: Path) -> None:
    made, path = keys.generate("cohort.example/log"), tmp_path / "key.pem"
    with pytest.raises(KeyFault, match="cannot read"):
        keys.load(path)
    made.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.load(path).vkey == keys.load(path, "cohort.example/log").vkey == made.vkey
    with pytest.raises(KeyFault, match=r"'cohort\.example/log', not 'other'"):
        keys.load(path, "other")
    with pytest.raises(KeyFault, match="never written over"):
        made.write(path)
    with pytest.raises(KeyFault, match="cannot write"):
        made.write(tmp_path / "none" / "key.pem")
    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(KeyFault, match="does not name its key"):
        keys.load(path)
    assert keys.load(path, "cohort.example/log").vkey == made.vkey
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (b"", b"hello", other, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(content)
        with pytest.raises(KeyFault, match="holds no Ed25519 key"):
            keys.load(path, "a")


# ---------------------------------------------------------------------- notes, checkpoints, proofs


def test_a_note_of_another_implementation_and_one_signed_by_two() -> None:
    opened = open_note(GO_NOTE, [parse_vkey(GO_VKEY)])
    assert opened.text == GO_NOTE.partition("\n\n")[0] + "\n"
    assert [verified.vkey for verified in opened.verified] == [GO_VKEY]
    note = sign_note("text\n\nmore\n", [FIRST, SECOND])
    assert open_note(note, BOTH[:1]).text == "text\n\nmore\n"
    assert open_note(note, BOTH[1:]).unknown == (f"one.example/log+{FIRST.key_id}",)
    assert open_note(note, BOTH).unknown == ()


LINE = "— a AAAAAAAA\n"
SHORT = {"text\n\n" + LINE * 17: "signatures", "x" * 70_000 + "\n\n" + LINE: "bytes", "\ud800\n\n" + LINE: "control"}
PARSERS: dict[str, tuple[Callable[[str], object], type[ValueError]]] = {
    "note": (lambda text: open_note(text, [FIRST.public_key]), NoteError),
    "checkpoint": (checkpoint.parse, CheckpointError),
    "proof": (merkle.parse, ProofError),
}


@pytest.mark.parametrize(("parser", "text"), cases("evidence/not_parsed", "parser", "text"))
def test_another_spelling_is_refused(parser: str, text: str) -> None:
    parse, fault = PARSERS[parser]
    with pytest.raises(fault):
        parse(text)


def test_what_is_too_long_is_refused() -> None:
    for note, said in SHORT.items():
        with pytest.raises(NoteError, match=said):
            open_note(note, [FIRST.public_key])
    hashes = "\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=" * 64
    with pytest.raises(ProofError, match="hashes"):
        merkle.parse(f"c2sp.org/tlog-proof@v1\nindex 1{hashes}\n\n{GO_NOTE}")


def test_unknown_and_wrong_signatures() -> None:
    note = sign_note("text\n", [FIRST])
    line = note.partition("\n\n")[2]
    both = sign_note("text\n", [FIRST, SECOND])
    spoilt = both.replace(both.splitlines()[-1], sign_note("else\n", [SECOND]).splitlines()[-1])
    for given, known, said in (
        (note, BOTH[1:], "by no key that is known"),
        (sign_note("text\n", [key("another", FIRST.name)]), BOTH[:1], "by no key that is known"),
        (note.replace("text", "test"), BOTH[:1], "does not fit its text"),
        (note + line, BOTH[:1], "signed twice"),
        (spoilt, BOTH, "does not fit its text"),  # one good signature does not make up for a bad one
    ):
        with pytest.raises(NoteError, match=said):
            open_note(given, known)


@pytest.mark.parametrize("text", ["", "\n", "no end", "a\tb\n", "a\x00\n", "\x1b\n"], ids=ascii)
def test_texts_that_no_note_can_carry(text: str) -> None:
    with pytest.raises(NoteError, match="control"):
        sign_note(text, [FIRST])
    for signers in ([], [FIRST] * 17):
        with pytest.raises(NoteError, match="1 to 16"):
            sign_note("text\n", signers)


def test_a_checkpoint_there_and_back() -> None:
    parsed = checkpoint.parse(CHECKPOINT)
    assert (parsed.origin, parsed.size, parsed.root.hex()[:8]) == ("example.com/behind-the-sofa", 20852163, "0ac5186a")
    assert parsed.text() == CHECKPOINT
    empty = Checkpoint("a", 0, EMPTY_ROOT)
    assert checkpoint.parse(empty.text()) == empty
    with pytest.raises(CheckpointError, match="empty log"):
        checkpoint.parse(CHECKPOINT.replace("20852163", "0"))


def test_a_proof_there_and_back() -> None:
    path = [leaf_hash(b"a"), leaf_hash(b"b")]
    text = merkle.write(73894, path, GO_NOTE)
    assert text.splitlines()[:2] == ["c2sp.org/tlog-proof@v1", "index 73894"]
    assert merkle.parse(text) == merkle.Proof(73894, tuple(path), GO_NOTE, None)
    with_extra = merkle.write(0, [], GO_NOTE, b"opaque")
    assert with_extra.splitlines()[1] == "extra b3BhcXVl"
    assert merkle.parse(with_extra) == merkle.Proof(0, (), GO_NOTE, b"opaque")


# ---------------------------------------------------------------------- rotation


def test_rotations_lead_from_the_first_key_to_the_newest() -> None:
    third = key("three", FIRST.name)
    chain = [
        checkpoint.rotation(FIRST, BOTH[1], AT),
        checkpoint.rotation(SECOND, third.public_key, "2026-11-23T10:00:00Z"),
    ]
    assert checkpoint.follow(BOTH[0], chain) == [*BOTH, third.public_key]
    assert checkpoint.parse_rotation(chain[1], BOTH[1]).at == "2026-11-23T10:00:00Z"
    assert checkpoint.follow(BOTH[1], chain[1:]) == [BOTH[1], third.public_key]
    for wrong in (chain[::-1], chain[1:], [chain[0], chain[0]]):
        with pytest.raises(checkpoint.RotationError, match=r"rotation [12]: "):
            checkpoint.follow(BOTH[0], wrong)
    with pytest.raises(checkpoint.RotationError, match="leads back"):
        checkpoint.follow(BOTH[0], [chain[0], checkpoint.rotation(SECOND, BOTH[0], AT)])


def test_what_says_something_else_is_no_rotation() -> None:
    for text in ("hello\n", f"cohort key rotation v1\nold {SECOND.vkey}\nnew {FIRST.vkey}\nat {AT}\n"):
        with pytest.raises(checkpoint.RotationError, match="is no statement"):
            checkpoint.parse_rotation(sign_note(text, [FIRST]), BOTH[0])
    with pytest.raises(checkpoint.RotationError, match="is the old one"):
        checkpoint.rotation(FIRST, BOTH[0], AT)
    for at in ("", "now", "2026-11-22", "2026-11-22T10:00:00+00:00", "2026-13-22T10:00:00Z"):
        with pytest.raises(checkpoint.RotationError, match="is not a moment"):
            checkpoint.rotation(FIRST, BOTH[1], at)
