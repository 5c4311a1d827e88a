"""How the trainer and its vLLM server talk: JSON in frames over a socket on the loopback address. Loads no torch.

Both sides first prove that they know the run's key, which never travels: each answers the other's random number with an
HMAC-SHA256 of it. Until then a frame may hold a few hundred bytes only. Nothing here can carry code.
"""

import hmac
import json
import secrets
import socket
import struct
from typing import Any

HOST = "127.0.0.1"
_LENGTH = struct.Struct(">Q")
_FIRST_FRAMES = 512
_FRAMES = 2**34
"""Most bytes of a frame: against a broken peer, not a limit that work could reach."""


class WrongKey(Exception):
    """The other side does not know the key."""


def send(line: socket.socket, message: Any) -> None:
    """Write one message. Raises OSError."""
    content = json.dumps(message, separators=(",", ":")).encode()
    line.sendall(_LENGTH.pack(len(content)) + content)


def receive(line: socket.socket, *, most: int = _FRAMES) -> Any:
    """Read one message. Raises EOFError at the line's end, OSError, ValueError for what is no frame."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > most:
        raise ValueError(f"a frame of {length} bytes")
    return json.loads(_exactly(line, length))


def _exactly(line: socket.socket, count: int) -> bytes:
    content = bytearray(count)
    view, filled = memoryview(content), 0
    while filled < count:
        got = line.recv_into(view[filled:])
        if not got:
            raise EOFError("the line has ended")
        filled += got
    return bytes(content)


def _proof(key: bytes, who: str, theirs: str, ours: str) -> str:
    return hmac.new(key, f"{who} {theirs} {ours}".encode(), "sha256").hexdigest()


def greet(line: socket.socket, key: bytes) -> None:
    """The trainer's half. Raises WrongKey where the server does not know the key, or says that we do not."""
    ours = secrets.token_hex(32)
    send(line, {"nonce": ours})
    reply = receive(line, most=_FIRST_FRAMES)
    theirs, shown = str(reply["nonce"]), str(reply["proof"])
    if not hmac.compare_digest(shown, _proof(key, "server", ours, theirs)):
        raise WrongKey("the server does not know the key of this run")
    send(line, {"proof": _proof(key, "trainer", theirs, ours)})
    if not receive(line, most=_FIRST_FRAMES)["known"]:
        raise WrongKey("the server does not take the key of this run")


def admit(line: socket.socket, key: bytes) -> None:
    """The server's half. Raises WrongKey, or what `receive` does, for anyone else than the trainer."""
    theirs = receive(line, most=_FIRST_FRAMES)["nonce"]
    ours = secrets.token_hex(32)
    send(line, {"nonce": ours, "proof": _proof(key, "server", str(theirs), ours)})
    shown = receive(line, most=_FIRST_FRAMES)["proof"]
    known = hmac.compare_digest(str(shown), _proof(key, "trainer", ours, str(theirs)))
    send(line, {"known": known})
    if not known:
        raise WrongKey("somebody came without the key of this run")
