"""Answers that are not the platform's, answers that come late, files that arrive broken."""

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_core.protocol.messages import Beat, ClaimRequest, Finish, InputFile
from tests.factories.worker import NODE
from tests.processes import DEADLINE
from tests.worker.life import claimed
from worker.environment import Environment
from worker.node import heartbeat
from worker.platform_client.client import AttemptLink, BadFile, Platform, Refused, Unreachable

BYTES = b"0123456789" * 1000
FILE = InputFile(path="inputs/x.jsonl", sha256=hashlib.sha256(BYTES).hexdigest(), size=len(BYTES))
CLAIMED = claimed(attempt_id=7)
BEAT = Beat(fence=1, shipped_seq=0, spooled_bytes=0)
FINISH = Finish(fence=3, end="failed", code="error", message="", last_seq=0)


class Clock:
    """The client's: ahead of the machine's by what was slept, or said to have passed."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, make = Clock(), asyncio.new_event_loop

    def loop() -> asyncio.AbstractEventLoop:
        made = make()
        made.time = clock.monotonic  # type: ignore[method-assign]
        return made

    monkeypatch.setattr("grpo_core.runtime.http.asyncio.new_event_loop", loop)
    monkeypatch.setattr("worker.platform_client.client.time", clock)
    return clock


Script = list[bytes | float | threading.Event | None]
"""Bytes are sent, a number of seconds passes on the client's clock, an event is waited for, and None holds the line
until the client leaves."""


def head(length: int, status: int = 200, more: str = "") -> bytes:
    """Says that the connection ends, or the next call may be sent on it while it is being closed, and is lost."""
    return f"HTTP/1.1 {status} X\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n".encode()


def answer(status: int, body: bytes = b"") -> Script:
    return [head(len(body), status), body]


class Line:
    """A server that answers each connection's only call by the next script, the last one for ever, and then closes
    it; it notes path and token of each call, and its body."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.scripts: list[Script] = []
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._play, args=(near,), daemon=True).start()

    def _play(self, near: socket.socket) -> None:
        with suppress(OSError), near, near.makefile("rb") as request:
            path = request.readline().split()[1].decode()
            lines = iter(lambda: request.readline().decode().strip(), "")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            # All of it: what is closed with bytes unread withdraws what it has sent.
            self.bodies.append(request.read(int(headers.get("content-length", 0))))
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            self.calls.append((path, headers["authorization"]))
            for piece in script:
                match piece:
                    case bytes():
                        near.sendall(piece)
                    case float():
                        self._clock.sleep(piece)
                    case threading.Event():
                        piece.wait()
                    case None:
                        request.read(1)


@pytest.fixture
def line(clock: Clock) -> Iterator[Line]:
    made = Line(clock)
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.fixture
def link(line: Line) -> Iterator[AttemptLink]:
    with Platform(line.url, "node") as platform:
        yield platform.attempt(CLAIMED)


def refusal(status: int, code: str) -> Script:
    return answer(status, f'{{"code": "{code}", "message": "no"}}'.encode())


def nothing() -> None:
    return


def beat(link: AttemptLink) -> None:
    link.beat(BEAT)


def ship(link: AttemptLink) -> None:
    link.records(b"x" * 100, meanwhile=nothing)


def test_5xx_is_tried_again_with_the_attempt_s_token(line: Line, link: AttemptLink) -> None:
    line.scripts = [answer(503), answer(502, b"<html>"), answer(429), answer(204)]
    between: list[int] = []
    link.finish(FINISH, patience=60, meanwhile=lambda: between.append(1))
    assert line.calls == [("/api/worker/v1/attempts/7/finish", "Bearer t")] * 4
    assert len(between) > 3  # between the tries, and while the next is waited for


@pytest.mark.parametrize(
    ("status", "code", "disowned"),
    [(409, "stale_fence", True), (401, "unknown_token", True), (422, "bad_record", False), (413, "too_large", False)],
)
def test_a_refusal_is_not_tried_again(line: Line, link: AttemptLink, status: int, code: str, disowned: bool) -> None:
    line.scripts = [refusal(status, code)]
    with pytest.raises(Refused) as caught:
        link.finish(FINISH, patience=60, meanwhile=nothing)
    assert (caught.value.code, caught.value.disowned) == (code, disowned)
    assert len(line.calls) == 1


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (404, r"404.*COHORT_URL"),
        (302, r"302.*COHORT_URL"),
        (401, r"401.*COHORT_URL"),
        (413, "client_max_body_size"),
        (503, "503"),
        (200, "BeatReply"),
    ],
)
def test_what_is_not_the_platform_s_word_is_no_refusal(line: Line, link: AttemptLink, status: int, why: str) -> None:
    """A proxy in between says so while the platform is started again, and no run should die of that."""
    page = b"<html>log in to the network</html>"
    script: Script = [head(len(page), status, f"Location: {line.url}/\r\n"), page]
    line.scripts = [script]
    with pytest.raises(Unreachable, match=why):
        beat(link)
    assert len(line.calls) == 1, "it is not followed with the token, and without patience once is enough"
    if status != 200:
        line.scripts = [script, script, answer(204)]
        link.finish(FINISH, patience=60, meanwhile=nothing)
        assert len(line.calls) == 4


@pytest.mark.parametrize("wrong", [BYTES[:-1] + b"x", BYTES + b"x", b"<html>one moment</html>"])
def test_a_file_arrives_whole_or_not_at_all(line: Line, link: AttemptLink, tmp_path: Path, wrong: bytes) -> None:
    target, chunks = tmp_path / "inputs" / "x.jsonl", list[int]()
    line.scripts = [answer(503), answer(200, wrong), answer(200, wrong), answer(200, BYTES)]
    link.fetch(FILE, target, meanwhile=lambda: chunks.append(1), patience=60)
    assert target.read_bytes() == BYTES
    assert chunks
    link.fetch(FILE, target, meanwhile=nothing, patience=0)
    assert len(line.calls) == 4, "it is here already"
    line.scripts = [answer(200, wrong)]
    with pytest.raises(BadFile):
        link.fetch(FILE, tmp_path / "y", meanwhile=nothing, patience=0)
    assert len(line.calls) == 4 + 4
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


def test_this_machine_is_called_past_any_proxy(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    line.scripts = [answer(200, b"{}")]
    for url in (line.url, line.url.replace("127.0.0.1", "localhost")):
        with Platform(url, "node") as platform:
            platform.present(NODE)
    with Platform("http://platform.example", "node") as platform, pytest.raises(Unreachable, match="ConnectionRefused"):
        platform.present(NODE)


def test_presence_ends_only_when_the_token_is_refused(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.01)
    refusals = [answer(404, b"<html>"), answer(503), refusal(422, "bad_request")]
    line.scripts = [*refusals, answer(200, b"{}"), refusal(401, "unknown_token")]
    settings = Environment.model_validate({"url": line.url, "node_token": "node", "runs_dir": tmp_path / "runs"})
    ended: list[int] = []
    heartbeat.start_heartbeat(settings, threading.Event(), lambda: ended.append(len(line.calls))).join(DEADLINE)
    assert line.calls == [("/api/worker/v1/node", "Bearer node")] * 5
    assert ended == [5]


def test_the_tries_of_a_claim_are_one_claim(line: Line) -> None:
    """So that the platform knows it again when the answer to a try was lost."""
    with Platform(line.url, "node") as platform:
        for _ in range(2):
            line.scripts = [answer(503), answer(502), refusal(409, "not_waiting")]
            with pytest.raises(Refused):
                platform.claim(1, NODE)
    ids = [ClaimRequest.model_validate_json(body).claim_id for body in line.bodies]
    assert ids == [ids[0]] * 3 + [ids[3]] * 3
    assert ids[0] != ids[3]
    assert min(map(len, ids)) == 32


class Enough(Exception):
    """Ends a call from within."""


@pytest.mark.parametrize("call", [beat, ship])
@pytest.mark.parametrize("begin", [head(2000), b"HTTP/1.1 200 OK\r\nX-Name: "], ids=["body", "head"])
def test_an_answer_that_trickles_has_an_end(
    monkeypatch: pytest.MonkeyPatch, line: Line, link: AttemptLink, call: Callable[[AttemptLink], None], begin: bytes
) -> None:
    """A byte now and then keeps a client's own limits for each read, here 20 s, from ever being met."""
    monkeypatch.setattr("worker.platform_client.client._SECONDS", 5.0)
    drop: Script = [b"x", 1.0]
    line.scripts = [[begin, *drop * 10, None]]
    with pytest.raises(Unreachable, match="not over within"):
        call(link)


def test_a_body_gets_the_time_that_a_slow_line_needs(
    monkeypatch: pytest.MonkeyPatch, line: Line, link: AttemptLink
) -> None:
    monkeypatch.setattr("worker.platform_client.client._SECONDS", 5.0)
    monkeypatch.setattr("worker.platform_client.client._SLOWEST_LINE", 10)
    looked = threading.Event()
    line.scripts = [[15.0, looked, *answer(200, b'{"acked_seq": 5}')]]
    assert link.records(b"x" * 1000, meanwhile=looked.set).acked_seq == 5
    assert looked.is_set()


def test_other_calls_are_made_while_a_batch_is_on_its_way(line: Line, link: AttemptLink) -> None:
    """So that an attempt beats and obeys meanwhile; and what is raised there ends the call."""
    line.scripts = [[None], answer(200, b'{"desired": "cancel", "lease_seconds": 60.0}')]

    def meanwhile() -> None:
        if line.calls:  # or the beat would get the batch's answer
            raise Enough(link.beat(BEAT).desired)

    with pytest.raises(Enough, match="cancel"):
        link.records(b"x", meanwhile=meanwhile)


@pytest.mark.parametrize("status", [200, 404])
def test_an_answer_has_a_largest_size(
    monkeypatch: pytest.MonkeyPatch, line: Line, link: AttemptLink, status: int
) -> None:
    monkeypatch.setattr("worker.platform_client.client._MAX_REPLY_BYTES", 1000)
    line.scripts = [[head(10**9, status), b"x" * 2000, None]]
    with pytest.raises(Unreachable, match="over 1,000 bytes"):
        beat(link)


@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_whose_compression_is_false(line: Line, link: AttemptLink, tmp_path: Path, status: int) -> None:
    """As from a proxy; no more reason to end a run than any other answer that is not the platform's."""
    line.scripts = [[head(5, status, "Content-Encoding: gzip\r\n"), b"wrong"]]
    with pytest.raises(Unreachable, match="compressed"):
        beat(link)
    with pytest.raises(Unreachable, match="compressed"):
        link.fetch(FILE, tmp_path / "x", meanwhile=nothing, patience=0)
    assert list(tmp_path.iterdir()) == []


def test_patience_with_a_file_counts_from_its_last_byte(line: Line, link: AttemptLink, tmp_path: Path) -> None:
    """A download that took longer than that, and breaks off, is begun again."""
    line.scripts = [[head(len(BYTES)), BYTES[:10], 15.0, BYTES[10:20]], answer(200, BYTES)]
    link.fetch(FILE, tmp_path / "x", meanwhile=nothing, patience=10.0)
    assert (tmp_path / "x").read_bytes() == BYTES
    assert len(line.calls) == 2


def test_of_a_fetch_that_was_ended_nothing_stays(line: Line, link: AttemptLink, tmp_path: Path) -> None:
    def meanwhile() -> None:
        if list(tmp_path.iterdir()):
            raise Enough

    line.scripts = [[head(len(BYTES)), BYTES[:10], None]]
    with pytest.raises(Enough):
        link.fetch(FILE, tmp_path / "x", meanwhile=meanwhile, patience=60)
    assert list(tmp_path.iterdir()) == []
