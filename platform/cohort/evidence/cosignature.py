"""A witness's signature under a log's checkpoint (c2sp.org/tlog-cosignature, Ed25519): it saw the log grow to there."""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cohort.evidence.keys import KeyFault
from cohort.evidence.plain_text import named

_COSIGNATURE = b"\x04"
_VKEY = re.compile(r"(?P<name>[^\s+]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)")


class CosignatureFault(ValueError):
    """A signature in a known witness's name that is not its own."""


@dataclass(frozen=True)
class WitnessKey:
    name: str
    public: bytes
    """32 bytes."""

    @classmethod
    def parse(cls, vkey: str) -> "WitnessKey":
        """Of name+hash+base64, with signature type 4. Raises KeyFault."""
        match = _VKEY.fullmatch(vkey)
        try:
            packed = base64.b64decode(match["key"], validate=True) if match else b""
        except binascii.Error:
            packed = b""
        if match is None or len(packed) != 33 or packed[:1] != _COSIGNATURE:
            raise KeyFault(f"{vkey[:200]!a} is no Ed25519 key of a witness as name+hash+base64 (type 4)")
        key = cls(match["name"], packed[1:])
        if key.key_id != match["id"]:
            raise KeyFault(f"the witness key {key.name!a} has the hash {key.key_id}, and {match['id']} is written")
        return key

    @property
    def key_id(self) -> str:
        return hashlib.sha256(self.name.encode() + b"\n" + _COSIGNATURE + self.public).digest()[:4].hex()

    def verified(self, note: str, line: str) -> datetime | None:
        """When the witness signed the checkpoint `note`, if `line` is its cosignature; None for anything else."""
        mark, name, signature, *more = [*line.removesuffix("\n").split(" "), "", "", ""][:4]
        if mark != "—" or name != self.name or any(more):
            return None
        try:
            packed = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        if len(packed) != 4 + 8 + 64 or packed[:4].hex() != self.key_id:
            return None
        seconds = int.from_bytes(packed[4:12])
        text = note.rpartition("\n\n")[0] + "\n"
        message = f"cosignature/v1\ntime {seconds}\n{text}".encode()
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(packed[12:], message)
            return datetime.fromtimestamp(seconds, UTC)
        except (InvalidSignature, ValueError, OverflowError, OSError):
            return None


def cosignature_lines(note: str, unknown: Sequence[str], witnesses: Sequence[WitnessKey]) -> tuple[str, ...]:
    """What the checkpoint `note` has besides its log's signatures, in words. `unknown`: the signers that `open_note`
    named; those of `witnesses` are checked. Raises CosignatureFault."""
    lines, signatures, unchecked = [], note.rpartition("\n\n")[2].splitlines(), list(unknown)
    for witness in witnesses:
        if (name := f"{witness.name}+{witness.key_id}") not in unchecked:
            lines.append(f"not cosigned by the witness {witness.name}")
            continue
        at = next(filter(None, (witness.verified(note, line) for line in signatures)), None)
        if at is None:
            raise CosignatureFault(f"the signature of the witness {witness.name!a} does not fit the checkpoint")
        unchecked.remove(name)
        lines.append(f"cosigned by the witness {witness.name} on {at:%Y-%m-%d %H:%M:%S} UTC")
    if unchecked:
        lines.append(f"signatures not checked: {named(unchecked)}")
    return tuple(lines)
