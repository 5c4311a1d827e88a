"""A witness's cosignatures (c2sp.org/tlog-cosignature, Ed25519) and how one is asked for (c2sp.org/tlog-witness)."""

import base64
import binascii
import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cohort.evidence.keys import KeyFault

_COSIGNATURE = b"\x04"
_VKEY = re.compile(r"(?P<name>[^\s+]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)")
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
_MOST_BYTES = 64 * 1024
SECONDS = 30.0


class WitnessFault(Exception):
    """The witness did not cosign. The message says what it answered."""


class OtherSize(WitnessFault):
    """The witness has seen a checkpoint of another size than it was told."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"the witness has last cosigned the checkpoint of {size:,} entries")


@dataclass(frozen=True)
class WitnessKey:
    name: str
    public: bytes
    """32 bytes."""

    @classmethod
    def parse(cls, vkey: str) -> "WitnessKey":
        """Of name+hash+base64, with signature type 4. Raises KeyFault."""
        found = _VKEY.fullmatch(vkey)
        try:
            packed = base64.b64decode(found["key"], validate=True) if found else b""
        except binascii.Error:
            packed = b""
        if found is None or len(packed) != 33 or packed[:1] != _COSIGNATURE:
            raise KeyFault(f"{vkey[:200]!a} is no Ed25519 key of a witness as name+hash+base64 (type 4)")
        key = cls(found["name"], packed[1:])
        if key.key_id != found["id"]:
            raise KeyFault(f"the witness key {key.name!a} has the hash {key.key_id}, and {found['id']} is written")
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


def cosigned(
    url: str, key: WitnessKey, note: str, *, old: int, proof: Callable[[int], list[bytes]]
) -> tuple[str, datetime]:
    """The witness's line for the checkpoint `note`, and when it signed.

    `old` is the size of the checkpoint that it is thought to have cosigned last; when it says another (409), it is
    asked once more from there. `proof` gives the consistency proof from a size. Raises WitnessFault.
    """
    try:
        return _asked(url, key, note, old, proof(old))
    except OtherSize as told:
        if told.size == old or told.size > int(note.split("\n")[1]):
            raise WitnessFault(
                f"{told}, which does not lead to this checkpoint: it holds another history of this log"
            ) from None
        return _asked(url, key, note, told.size, proof(told.size))


def _asked(url: str, key: WitnessKey, note: str, old: int, proof: list[bytes]) -> tuple[str, datetime]:
    lines = [f"old {old}", *(base64.b64encode(one).decode() for one in proof), "", note]
    request = urllib.request.Request(
        f"{url.rstrip('/')}/add-checkpoint",
        data="\n".join(lines).encode(),
        headers={"Content-Type": "text/plain; charset=utf-8", "User-Agent": "cohort"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            answer = reply.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        raise _refusal(error) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise WitnessFault(
            f"{url} cannot be reached: {getattr(error, 'reason', error) or type(error).__name__}"
        ) from None
    for line in answer.splitlines():
        at = key.verified(note, line)
        if at is not None:
            return line, at
    raise WitnessFault(f"the witness answered without a cosignature of {key.name} that fits the checkpoint")


def _refusal(error: urllib.error.HTTPError) -> WitnessFault:
    try:
        body = error.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException):  # its number says enough
        body = b""
    if error.code == 409 and error.headers.get_content_type() == "text/x.tlog.size" and (size := _SIZE.fullmatch(body)):
        return OtherSize(int(size[1]))
    meaning = {
        400: "it found the request malformed",
        403: "it knows this log, and none of the keys that signed",
        404: "it does not know this log: have its operator add the log's name and key",
        409: "it has another history of this log",
        422: "the proof that this checkpoint follows from its last one does not hold",
    }
    said = " ".join(body.decode("utf-8", errors="replace").split())[:200]
    why = meaning.get(error.code, "")
    return WitnessFault(": ".join(part for part in (f"the witness answered {error.code}", why, said) if part))
