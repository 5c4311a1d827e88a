"""Signed notes (c2sp.org/signed-note): text, a blank line, and a line for each signature."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.evidence.keys import PublicKey, SigningKey, decode, encode

MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 16
_LINE = re.compile(r"— (?P<name>[^\s+]+) (?P<signature>[A-Za-z0-9+/=]+)")
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")


class NoteError(ValueError):
    """A text that is no note, or one that no known key signed."""


@dataclass(frozen=True, slots=True)
class Opened:
    text: str
    """With its last line end."""
    verified: tuple[PublicKey, ...]
    """At least one."""
    unknown: tuple[str, ...]
    """Names of keys that signed too and were not given: those signatures were not checked."""


def sign_note(text: str, keys: Sequence[SigningKey]) -> str:
    """Raises NoteError for a text that a note cannot carry (no end of line, control characters) and without a key."""
    if not text.endswith("\n") or text == "\n" or _CONTROL.search(text):
        raise NoteError("a note's text ends with a line end and holds no control signs")
    if not keys or len(keys) > MAX_SIGNATURES:
        raise NoteError(f"a note is signed by 1 to {MAX_SIGNATURES} keys")
    lines = [f"— {key.name} {encode(bytes.fromhex(key.key_id) + key.sign(text.encode()))}\n" for key in keys]
    return f"{text}\n{''.join(lines)}"


def open_note(note: str, keys: Sequence[PublicKey]) -> Opened:
    """The text of a note that at least one of `keys` signed. Raises NoteError when it is no note, when a known key's
    signature does not fit, and when none is known. Signatures of other keys are not checked, only named."""
    if len(note) > MAX_NOTE_BYTES or len(note.encode(errors="replace")) > MAX_NOTE_BYTES:
        raise NoteError(f"larger than the {MAX_NOTE_BYTES:,} bytes of a note")
    if _CONTROL.search(note):
        raise NoteError("holds control signs, which no note does")
    text, blank, signatures = note.rpartition("\n\n")
    if not blank or not text or not signatures.endswith("\n"):
        raise NoteError("is no signed note: a text, an empty line, and lines of signatures")
    text += "\n"
    lines = signatures.removesuffix("\n").split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteError(f"has more than {MAX_SIGNATURES} signatures")
    verified: list[PublicKey] = []
    unknown: list[str] = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise NoteError(f"{line[:80]!a} is not a line of a signature")
        try:
            packed = decode(match["signature"])
        except ValueError as error:
            raise NoteError(f"the signature of {match['name']!a}: {error}") from None
        if len(packed) < 5:
            raise NoteError(f"the signature of {match['name']!a} is too short")
        key_id = packed[:4].hex()
        key = next((key for key in keys if (key.name, key.key_id) == (match["name"], key_id)), None)
        if key is None:
            unknown.append(f"{match['name']}+{key_id}")
        elif key in verified:
            raise NoteError(f"is signed twice by {key.name!a}")
        elif not key.verify(packed[4:], text.encode()):
            raise NoteError(f"the signature of {key.name!a} ({key_id}) does not fit its text")
        else:
            verified.append(key)
    if not verified:
        raise NoteError(f"is signed by {', '.join(map(ascii, unknown))}, and by no key that is known here")
    return Opened(text, tuple(verified), tuple(unknown))
