"""A witness's cosignatures (c2sp.org/tlog-cosignature, Ed25519) and how one is asked for (c2sp.org/tlog-witness)."""

import base64
import binascii
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cohort.audit import witness_request
from cohort.evidence.keys import KeyFault

_COSIGNATURE = b"\x04"
_VKEY = re.compile(r"(?P<name>[^\s+]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)")
_SIZE = re.compile(r"(0|[1-9][0-9]{0,18})\n")
SECONDS = 30.0
"""For a whole exchange with a witness: both requests, from the look-up of its name to the last byte."""


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
    url: str,
    key: WitnessKey,
    note: str,
    *,
    old: int,
    proof: Callable[[int], list[bytes]],
    seconds: float | None = None,
) -> tuple[str, datetime]:
    """The witness's line for the checkpoint `note`, and when it signed.

    `old` is the size of the checkpoint that it is thought to have cosigned last; when it says another (409), it is
    asked once more from there. `proof` gives the consistency proof from a size. The witness has `seconds` (SECONDS) for
    all of it together, however it paces its answers. Raises WitnessFault.
    """
    seconds = SECONDS if seconds is None else seconds
    first = proof(old)
    begun = time.monotonic()
    try:
        return _asked(url, key, note, old, first, seconds)
    except OtherSize as told:
        spent = time.monotonic() - begun
        if told.size == old or told.size > int(note.split("\n")[1]):
            raise WitnessFault(
                f"{told}, which does not lead to this checkpoint: it holds another history of this log"
            ) from None
        return _asked(url, key, note, told.size, proof(told.size), seconds, spent)


def _asked(
    url: str, key: WitnessKey, note: str, old: int, proof: list[bytes], seconds: float, spent: float = 0.0
) -> tuple[str, datetime]:
    lines = [f"old {old}", *(base64.b64encode(one).decode() for one in proof), "", note]
    reply = _reply(url, "\n".join(lines).encode(), seconds, spent)
    if "unreachable" in reply:
        raise WitnessFault(f"{url} cannot be reached: {reply['unreachable']}")
    if reply["status"] != 200:
        raise _refusal(reply["status"], reply["type"], reply["body"])
    for line in reply["body"].splitlines():
        at = key.verified(note, line)
        if at is not None:
            return line, at
    raise WitnessFault(f"the witness answered without a cosignature of {key.name} that fits the checkpoint")


def _reply(url: str, body: bytes, seconds: float, spent: float) -> dict[str, Any]:
    """As `witness_request` prints it. Raises WitnessFault when `seconds`, of which `spent` are over, are not enough."""
    left = max(seconds - spent, 0.001)
    words = [sys.executable, "-I", witness_request.__file__, f"{url.rstrip('/')}/add-checkpoint", str(left)]
    late = f"{url} took longer than {seconds:g} s for its whole answer, and the exchange was ended"
    try:
        done = subprocess.run(words, input=body, capture_output=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        raise WitnessFault(late) from None
    if done.returncode == -signal.SIGALRM:
        raise WitnessFault(late)
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", errors="replace").split())[-200:]
        raise WitnessFault(f"the request to {url} ended with status {done.returncode}: {said}")
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def _refusal(status: int, kind: str, body: str) -> WitnessFault:
    if status == 409 and kind == "text/x.tlog.size" and (size := _SIZE.fullmatch(body)):
        return OtherSize(int(size[1]))
    meaning = {
        400: "it found the request malformed",
        403: "it knows this log, and none of the keys that signed",
        404: "it does not know this log: have its operator add the log's name and key",
        409: "it has another history of this log",
        422: "the proof that this checkpoint follows from its last one does not hold",
    }
    said = " ".join(body.split())[:200]
    why = meaning.get(status, "")
    return WitnessFault(": ".join(part for part in (f"the witness answered {status}", why, said) if part))
