"""Keys, signed notes, checkpoints, proofs and key rotations: as C2SP specifies them, with no second spelling."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cohort.evidence import keys, rotation
from cohort.evidence.keys import KeyFault, parse_vkey
from cohort.evidence.note import NoteError, open_note, sign_note
from tests.web.governance.card_made import key

GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
"""The example in the documentation of Go's package golang.org/x/mod/sumdb/note."""

FIRST, SECOND = key("one", "one.example/log"), key("two", "two.example/log")


def every_flip(text: str, opened: Callable[[str], object]) -> None:
    """No byte of `text` can change without `opened` refusing it, or giving something else."""
    content = text.encode()
    for place in range(len(content)):
        for bit in (0x01, 0x04, 0x20, 0x80):
            bent = bytearray(content)
            bent[place] ^= bit
            try:
                changed = bytes(bent).decode()
            except UnicodeDecodeError:
                continue  # no text at all
            with pytest.raises(ValueError):
                opened(changed)


def test_a_note_of_another_implementation() -> None:
    opened = open_note(GO_NOTE, [parse_vkey(GO_VKEY)])
    assert opened.text == GO_NOTE.partition("\n\n")[0] + "\n"
    assert [one.vkey for one in opened.verified] == [GO_VKEY]


def test_key_id_by_its_definition() -> None:
    digest = hashlib.sha256(b"one.example/log\n\x01" + FIRST.public).hexdigest()
    assert FIRST.key_id == digest[:8]
    packed = base64.b64encode(b"\x01" + FIRST.public).decode()
    assert FIRST.vkey == f"one.example/log+{digest[:8]}+{packed}"
    assert parse_vkey(FIRST.vkey) == FIRST.public_key


def test_every_byte_of_a_vkey_matters() -> None:
    every_vkey = FIRST.vkey.encode()
    for place in range(len(every_vkey)):
        for bit in (1, 4, 32):
            bent = bytearray(every_vkey)
            bent[place] ^= bit
            with pytest.raises(KeyFault):
                parse_vkey(bent.decode())


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u2028b", "\x1b[2J", "x" * 201, "\ud800"])
def test_names_that_no_key_can_have(name: str) -> None:
    with pytest.raises(KeyFault, match="cannot name a key"):
        keys.generate(name)


def test_a_key_keeps_its_name_in_its_file(tmp_path: Path) -> None:
    made, path = keys.generate("cohort.example/log"), tmp_path / "key.pem"
    made.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.load(path).vkey == keys.load(path, "cohort.example/log").vkey == made.vkey
    with pytest.raises(KeyFault, match=r"holds the key named 'cohort\.example/log', not 'other'"):
        keys.load(path, "other")
    with pytest.raises(KeyFault, match="never written over"):
        made.write(path)
    with pytest.raises(KeyFault, match="cannot write"):
        made.write(tmp_path / "none" / "key.pem")
    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(KeyFault, match="does not name its key"):
        keys.load(path)
    assert keys.load(path, "cohort.example/log").vkey == made.vkey


def test_files_that_hold_no_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(KeyFault, match="No such file"):
        keys.load(path)
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (b"", b"hello", other, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(content)
        with pytest.raises(KeyFault, match="holds no Ed25519 key"):
            keys.load(path, "a")


# ---------------------------------------------------------------------- notes


def test_note_signed_by_two_is_good_for_either() -> None:
    note = sign_note("text\n\nmore\n", [FIRST, SECOND])
    assert open_note(note, [FIRST.public_key]).text == "text\n\nmore\n"
    assert open_note(note, [SECOND.public_key]).unknown == (f"one.example/log+{FIRST.key_id}",)
    assert open_note(note, [FIRST.public_key, SECOND.public_key]).unknown == ()


def test_every_byte_of_a_note_matters() -> None:
    note = sign_note("a text − with\n\nlines\n", [FIRST])
    every_flip(note, lambda text: open_note(text, [FIRST.public_key]))
    every_flip(sign_note("text\n", [FIRST, SECOND]), lambda text: _all(text, [FIRST.public_key, SECOND.public_key]))


def _all(text: str, known: list[keys.PublicKey]) -> None:
    if open_note(text, known).unknown:
        raise NoteError("a signature that nobody checks")


@pytest.mark.parametrize(
    "note",
    ["", "\n", "\n\n", "text", "text\n", "text\n\n", "text\n\nsignature\n", "text\n\n— a AAAAAAAA", "text\n\n— a AAA\n",
     "text\n\n—  AAAAAAAA\n", "text\n\n- a AAAAAAAA\n", "text\n\n— a b AAAAAAAA\n", "te\x00xt\n\n— a AAAAAAAA\n",
     "text\r\n\r\n— a AAAAAAAA\r\n", "text\n\n— a AAAAAAB=\n", "\n\n— a AAAAAAAA\n", "text\n\n" + "— a AAAAAAAA\n" * 17,
     "x" * 70_000 + "\n\n— a AAAAAAAA\n", "\ud800\n\n— a AAAAAAAA\n"],
)  # fmt: skip
def test_what_is_no_note(note: str) -> None:
    with pytest.raises(NoteError):
        open_note(note, [FIRST.public_key])


def test_unknown_and_wrong_signatures() -> None:
    note = sign_note("text\n", [FIRST])
    with pytest.raises(NoteError, match="by no key that is known"):
        open_note(note, [SECOND.public_key])
    same_name = key("another", FIRST.name)
    with pytest.raises(NoteError, match="by no key that is known"):
        open_note(sign_note("text\n", [same_name]), [FIRST.public_key])
    with pytest.raises(NoteError, match="does not fit its text"):
        open_note(note.replace("text", "test"), [FIRST.public_key])
    line = note.partition("\n\n")[2]
    with pytest.raises(NoteError, match="signed twice"):
        open_note(note + line, [FIRST.public_key])
    # one good signature does not make up for a bad one of another known key
    both = sign_note("text\n", [FIRST, SECOND])
    bent = both.replace(both.splitlines()[-1], sign_note("else\n", [SECOND]).splitlines()[-1])
    with pytest.raises(NoteError, match="does not fit its text"):
        open_note(bent, [FIRST.public_key, SECOND.public_key])


@pytest.mark.parametrize("text", ["", "\n", "no end", "a\tb\n", "a\x00\n", "\x1b\n"])
def test_texts_that_no_note_can_carry(text: str) -> None:
    with pytest.raises(NoteError):
        sign_note(text, [FIRST])
    with pytest.raises(NoteError):
        sign_note("text\n", [])


# ---------------------------------------------------------------------- rotation


def test_rotations_lead_from_the_first_key_to_the_newest() -> None:
    third = key("three", FIRST.name)
    chain = [
        rotation.rotation(FIRST, SECOND.public_key, "2026-11-22T10:00:00Z"),
        rotation.rotation(SECOND, third.public_key, "2026-11-23T10:00:00Z"),
    ]
    assert rotation.follow(FIRST.public_key, chain) == [FIRST.public_key, SECOND.public_key, third.public_key]
    assert rotation.parse_rotation(chain[1], SECOND.public_key).at == "2026-11-23T10:00:00Z"
    assert rotation.follow(SECOND.public_key, chain[1:]) == [SECOND.public_key, third.public_key]
    for wrong in (chain[::-1], chain[1:], [chain[0], chain[0]]):
        with pytest.raises(rotation.RotationError):
            rotation.follow(FIRST.public_key, wrong)
    back = rotation.rotation(SECOND, FIRST.public_key, "2026-11-23T10:00:00Z")
    with pytest.raises(rotation.RotationError, match="leads back"):
        rotation.follow(FIRST.public_key, [chain[0], back])
    every_flip(chain[0], lambda text: rotation.parse_rotation(text, FIRST.public_key))


def test_a_note_that_says_something_else_is_no_rotation() -> None:
    for text in ("hello\n", f"cohort key rotation v1\nold {SECOND.vkey}\nnew {FIRST.vkey}\nat 2026-11-22T10:00:00Z\n"):
        with pytest.raises(rotation.RotationError, match="is no statement"):
            rotation.parse_rotation(sign_note(text, [FIRST]), FIRST.public_key)
    with pytest.raises(rotation.RotationError, match="is the old one"):
        rotation.rotation(FIRST, FIRST.public_key, "2026-11-22T10:00:00Z")


@pytest.mark.parametrize("at", ["", "now", "2026-11-22", "2026-11-22T10:00:00+00:00", "2026-13-22T10:00:00Z"])
def test_moments_that_are_none(at: str) -> None:
    with pytest.raises(rotation.RotationError, match="is not a moment"):
        rotation.rotation(FIRST, SECOND.public_key, at)
