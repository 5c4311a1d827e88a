"""A real HTTP server on this machine that answers as it is told: rightly, or as a judge's server goes wrong; and judges
that ask it."""

import gzip
import itertools
import json
import multiprocessing
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest

from grpo_core.config.reward import RewardLimits
from grpo_core.data.problem import Problem
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import ScoreRequest
from grpo_core.rewards.base import Context
from grpo_core.rewards.judge import scorer
from grpo_core.rewards.judge.endpoint import parse_endpoint
from grpo_core.rewards.judge.kind import JudgeParams
from grpo_core.rewards.judge.scorer import Judge
from grpo_core.runtime.http import HttpClient

PROBLEM = Problem("p1", "2+2?", "4")
KEY = "sk-test-0123456789abcdef"
Reply = bytes | Iterable[bytes]
_GRADED = re.compile(r"\[([0-9a-f]{12})\]\n(.*)\n\[\1\]", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    """Names in small letters."""
    raw: bytes
    at: float

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def question(self) -> str:
        return self.body["messages"][-1]["content"]

    @property
    def completion(self) -> str:
        """What the usual question holds as the answer to grade."""
        return _GRADED.search(self.question)[2]


def http(status: str, body: bytes, *headers: str, kind: str = "application/json", length: int | None = None) -> bytes:
    """A whole answer; `length` instead of the true one."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chat(text: str | None, *, usage: tuple[int, int] | None = (7, 3), finish: str = "stop", **message: Any) -> bytes:
    """A chat completion's body."""
    completion: dict[str, Any] = {
        "model": "judge-2026-01",
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}],
    }
    if usage is not None:
        completion["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return json.dumps(completion).encode()


def says(text: str | None, **more: Any) -> bytes:
    return http("200 OK", chat(text, **more))


def drip(_: Any = None) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        time.sleep(0.05)
        yield b" "


def _endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    while True:
        yield b" " * 65536


def _endless_headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"X-%d: y\r\n" % number


def _bomb() -> bytes:
    return http("200 OK", gzip.compress(b" " * 50_000_000), "Content-Encoding: gzip")


def _silence() -> bytes:
    threading.Event().wait()  # the thread ends with the tests
    return b""


STREAMS: dict[str, Callable[[], Reply]] = {
    "drip": drip,
    "endless": _endless,
    "endless_headers": _endless_headers,
    "bomb": _bomb,
    "silence": _silence,
}


def reply_of(reply: dict[str, Any]) -> Reply:
    """What tests/cases/judge/faults.yaml describes."""
    match reply:
        case {"stream": name}:
            return STREAMS[name]()
        case {"raw": text}:
            return text.encode()
        case {"chat": text}:
            body = chat(text, **{name: reply[name] for name in ("finish", "refusal") if name in reply})
        case _:
            body = reply["body"].encode() * reply.get("times", 1)
    kind, headers = reply.get("type", "application/json"), reply.get("headers", [])
    return http(reply.get("http", "200 OK"), body, *headers, kind=kind, length=reply.get("length"))


@dataclass
class Server:
    """`answer` is called in a thread of its own for each request."""

    answer: Callable[[Seen], Reply]
    seen: list[Seen] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    def __enter__(self) -> "Server":
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept(), which closing does not
        self._socket.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/v1"

    def _accept(self) -> None:
        while self._open:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError), line:
            if self.tls is not None:
                line = self.tls.wrap_socket(line, server_side=True)
            seen = _read(line)
            self.seen.append(seen)
            reply = self.answer(seen)
            for part in [reply] if isinstance(reply, bytes) else reply:
                line.sendall(part)
            line.shutdown(socket.SHUT_WR)
            line.recv(1)


def _read(line: socket.socket) -> Seen:
    reader = line.makefile("rb")
    first = reader.readline()
    if not first.startswith(b"POST "):
        line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # as a server does that is spoken to in TLS and knows none
        raise ConnectionError("no HTTP")
    path = first.split()[1].decode()
    headers = {}
    while (row := reader.readline().strip()) != b"":
        name, _, value = row.decode().partition(":")
        headers[name.lower()] = value.strip()
    return Seen(path, headers, reader.read(int(headers.get("content-length", 0))), time.monotonic())


@contextmanager
def apart(answer: Callable[[Seen], Reply]) -> Iterator[str]:
    """The same in a process of its own, for tests that fork; gives host and port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_served, args=(answer, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _served(answer: Callable[[Seen], Reply], connection: Connection) -> None:
    with Server(answer) as server:
        connection.send(server.address)
        threading.Event().wait()


def opened(url: str, monkeypatch: pytest.MonkeyPatch, *, allowed: bool = False, key: str = "", **params: Any) -> Judge:
    """A judge at this address, to which its `key` may go. `limits` and `cache` are those of the run."""
    address = parse_endpoint(url).address
    context = Context(params.pop("limits", RewardLimits(retries=1, workers=1)), cache=params.pop("cache", None))
    monkeypatch.setattr(scorer, "FIRST_PAUSE", 0.01)
    if allowed:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", address)
    if key:
        monkeypatch.setenv("GRPO_JUDGE_KEY", key)
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", f"judge.example, {address}")
    made = {"base_url": url, "model": "grader", "key_env": "GRPO_JUDGE_KEY" if key else None, **params}
    return Judge(JudgeParams(**made), context)


def scored(judge: Judge, *completions: str, check: Callable[[], None] = lambda: None) -> list[ComponentScore]:
    return judge.score([ScoreRequest(PROBLEM, text) for text in completions], check)


def let_pass(client: HttpClient, seconds: float) -> None:
    """On the clock of the calls that are under way."""
    loop = client._loop
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


def values(judge: Judge, *completions: str) -> list[float | None]:
    return [score.value for score in scored(judge, *completions)]
