"""Settings of a vLLM engine, requests to it and how they are framed on the socket: plain values that JSON carries.
Loads no torch."""

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_core.rollout.base import Decoding

# How the trainer and its vLLM server talk: JSON in frames over a socket on the loopback address. Loads no torch.
#
# Both sides first prove that they know the run's key, which never travels: each answers the other's random number with
# an HMAC-SHA256 of it. Until then a frame may hold a few hundred bytes only. Nothing here can carry code.

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
    """Read one message. Raises EOFError at the connection's end, OSError, ValueError for what is no frame."""
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
    """The trainer's half. Raises WrongKey where the server does not know the key, or replies that we do not."""
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


CHUNK = 2**28
"""Most bytes of weights that are sent at once (256 MiB), a larger tensor apart."""
Sampled = tuple[list[int], list[float]]
"""Tokens of one completion, and their log-probabilities."""


@dataclass(frozen=True)
class Settings:
    """One engine."""

    model: str
    """Folder with config.json. No weight is read from it: all of them are sent."""
    dtype: str
    device: str
    """cpu or cuda."""
    positions: int
    """Most tokens of one sequence, prompt and completion together."""
    rows: int
    """Most sequences at the same time."""
    memory_share: float
    """Part of a GPU's memory for weights and cache."""
    cache_bytes: int | None
    """Size of the cache of keys and values; None where `memory_share` decides."""
    eager: bool
    seed: int
    uncompiled: bool = False
    """Nothing in the engine's process is compiled by torch: no compiler is needed, and the first tokens come sooner."""
    devices: int = 1
    """GPUs that the model is split over."""
    sleeps: bool = False
    """Give the device's memory back between two phases of sampling."""
    per_rank: bool = False
    """One of several engines of processes that torchrun started, each with its own."""


@dataclass(frozen=True)
class GenerateRequest:
    """Completions of some prompts."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[Sequence[int]]
    """One of 63 bits for each completion, prompt by prompt."""
    decoding: Decoding
    stop: Sequence[int]
    """Ids that end a completion."""


class Sampler(Protocol):
    """An engine, wherever it runs. Everything it raises is a RolloutError, OutOfMemory, DeviceError, ExchangeError, or
    Interrupted."""

    def generate(self, request: GenerateRequest) -> list[list[Sampled]]:
        """A completion for each seed, prompt by prompt."""

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """log π at temperature 1 of each text's tokens, all but the first."""

    def load(self, weights: Any) -> None:
        """Take these weights, tensors by their name in a checkpoint; forget what was computed with others."""

    def close(self) -> None: ...


class ServerExited(Exception):
    """The server has ended, or does not answer any more. The message says how."""
