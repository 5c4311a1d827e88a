"""Answers that are not the platform's, answers that come late, files that arrive broken."""

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_core.wire import ClaimRequest, Finish, InputFile
from tests.processes import DEADLINE
from tests.worker.life import claimed
from tests.worker.making import NODE
from worker import presence
from worker.client import AttemptLink, BadFile, Platform, Refused, Unreachable
from worker.environment import Environment

Answer = tuple[int, bytes]
BYTES = b"0123456789" * 1000
FILE = InputFile(path="inputs/x.jsonl", sha256=hashlib.sha256(BYTES).hexdigest(), size=len(BYTES))
CLAIMED = claimed(attempt_id=7)
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

    monkeypatch.setattr("worker.calls.asyncio.new_event_loop", loop)
    monkeypatch.setattr("worker.client.time", clock)
    return clock


class Scripted:
    """An HTTP server that gives the given answers in turn, the last one for ever, and notes its calls."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                outer.calls.append((self.path, self.headers["Authorization"]))
                status, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def link(scripted: Scripted) -> Iterator[AttemptLink]:
    with Platform(scripted.url, "node") as platform:
        yield platform.attempt(CLAIMED)


def nothing() -> None:
    return


def beat(link: AttemptLink) -> None:
    link.beat(shipped_seq=0, spooled_bytes=0)


def ship(link: AttemptLink) -> None:
    link.records(b"x" * 100, meanwhile=nothing)


def test_5xx_is_tried_again_with_the_attempt_s_token(scripted: Scripted, link: AttemptLink) -> None:
    scripted.answers = [(503, b""), (502, b"<html>"), (429, b""), (204, b"")]
    between: list[int] = []
    link.finish(FINISH, patience=60, meanwhile=lambda: between.append(1))
    assert scripted.calls == [("/api/worker/v1/attempts/7/finish", "Bearer t")] * 4
    assert len(between) > 3  # between the tries, and while the next is waited for


@pytest.mark.parametrize(
    ("answer", "code", "disowned"),
    [
        ((409, b'{"code": "stale_fence", "message": "ended"}'), "stale_fence", True),
        ((401, b'{"code": "unknown_token", "message": "no"}'), "unknown_token", True),
        ((422, b'{"code": "bad_record", "message": "record 3"}'), "bad_record", False),
        ((413, b'{"code": "too_large", "message": "too much"}'), "too_large", False),
    ],
)
def test_a_refusal_is_not_tried_again(
    scripted: Scripted, link: AttemptLink, answer: Answer, code: str, disowned: bool
) -> None:
    scripted.answers = [answer]
    with pytest.raises(Refused) as caught:
        link.finish(FINISH, patience=60, meanwhile=nothing)
    assert (caught.value.code, caught.value.disowned) == (code, disowned)
    assert len(scripted.calls) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, b"<html>nginx</html>"), "404.*COHORT_URL"),
        ((302, b""), "302.*COHORT_URL"),  # not followed with the token
        ((401, b"proxy"), "401.*COHORT_URL"),
        ((413, b"<html>nginx</html>"), "client_max_body_size"),
        ((503, b""), "503"),
        ((200, b"<html>log in to the network</html>"), "BeatReply"),
    ],
)
def test_what_is_not_the_platform_s_word_is_no_refusal(
    scripted: Scripted, link: AttemptLink, answer: Answer, why: str
) -> None:
    """A proxy in between says so while the platform is started again, and no run should die of that."""
    scripted.answers = [answer]
    with pytest.raises(Unreachable, match=why):
        beat(link)
    assert len(scripted.calls) == 1, "without patience once is enough"
    if answer[0] != 200:
        scripted.answers = [answer, answer, (204, b"")]
        link.finish(FINISH, patience=60, meanwhile=nothing)
        assert len(scripted.calls) == 4


def test_nobody_listens() -> None:
    with Platform("http://127.0.0.1:1", "node") as platform, pytest.raises(Unreachable):
        platform.claim(1, NODE, patience=0)


def test_a_file_arrives_whole_or_not_at_all(scripted: Scripted, link: AttemptLink, tmp_path: Path) -> None:
    target, chunks = tmp_path / "inputs" / "x.jsonl", list[int]()
    scripted.answers = [(503, b""), (200, BYTES)]
    link.fetch(FILE, target, meanwhile=lambda: chunks.append(1), patience=60)
    assert target.read_bytes() == BYTES
    assert chunks
    link.fetch(FILE, target, meanwhile=nothing, patience=0)
    assert len(scripted.calls) == 2, "it is here already"


@pytest.mark.parametrize("wrong", [BYTES[:-1] + b"x", BYTES + b"x", b"<html>one moment</html>"])
def test_a_file_that_arrives_wrong_is_fetched_again(
    scripted: Scripted, link: AttemptLink, tmp_path: Path, wrong: bytes
) -> None:
    scripted.answers = [(200, wrong), (200, wrong), (200, BYTES)]
    link.fetch(FILE, tmp_path / "x", meanwhile=nothing, patience=0)
    assert (tmp_path / "x").read_bytes() == BYTES
    scripted.answers = [(200, wrong)]
    with pytest.raises(BadFile):
        link.fetch(FILE, tmp_path / "y", meanwhile=nothing, patience=0)
    assert len(scripted.calls) == 3 + 4
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_this_machine_is_called_past_any_proxy(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    scripted.answers = [(204, b"")]
    for url in (scripted.url, scripted.url.replace("127.0.0.1", "localhost")):
        with Platform(url, "node") as platform:
            platform.present(NODE)
    with Platform("http://platform.example", "node") as platform, pytest.raises(Unreachable, match="ConnectionRefused"):
        platform.present(NODE)


def test_presence_ends_only_when_the_token_is_refused(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(presence, "SECONDS", 0.01)
    refusals = [(404, b"<html>"), (503, b""), (422, b'{"code": "bad_request", "message": "cpus"}')]
    scripted.answers = [*refusals, (204, b""), (401, b'{"code": "unknown_token", "message": "no"}')]
    settings = Environment.model_validate({"url": scripted.url, "node_token": "node", "runs_dir": tmp_path / "runs"})
    ended: list[int] = []
    presence.stay_present(settings, threading.Event(), lambda: ended.append(len(scripted.calls))).join(DEADLINE)
    assert scripted.calls == [("/api/worker/v1/node", "Bearer node")] * 5
    assert ended == [5]


def test_the_tries_of_a_claim_are_one_claim(scripted: Scripted) -> None:
    """So that the platform knows it again when the answer to a try was lost."""
    no = (409, b'{"code": "not_waiting", "message": "nothing waits"}')
    with Platform(scripted.url, "node") as platform:
        for _ in range(2):
            scripted.answers = [(503, b""), (502, b""), no]
            with pytest.raises(Refused):
                platform.claim(1, NODE)
    ids = [ClaimRequest.model_validate_json(body).claim_id for body in scripted.bodies]
    assert ids == [ids[0]] * 3 + [ids[3]] * 3
    assert ids[0] != ids[3]
    assert min(map(len, ids)) == 32


# ---------------------------------------------------------------------- answers without end


class Line:
    """A server that answers each connection's first call by a script, the last of them for all further connections.

    Bytes are sent, a number of seconds passes on the client's clock, an event is waited for, and None holds the line
    until the client leaves; after its script a connection is closed.
    """

    def __init__(self, clock: Clock, *scripts: list[bytes | float | threading.Event | None]) -> None:
        self._clock = clock
        self._scripts = list(scripts)
        self.taken = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            script = self._scripts[min(self.taken, len(self._scripts) - 1)]
            self.taken += 1
            threading.Thread(target=self._play, args=(near, script), daemon=True).start()

    def _play(self, near: socket.socket, script: list[bytes | float | threading.Event | None]) -> None:
        with near, near.makefile("rb") as request:
            # All of it: what is closed with bytes unread takes back what it has sent.
            size = 0
            while line := request.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            request.read(size)
            for piece in script:
                try:
                    match piece:
                        case bytes():
                            near.sendall(piece)
                        case float():
                            self._clock.sleep(piece)
                        case threading.Event():
                            piece.wait(DEADLINE)
                        case None:
                            request.read(1)
                except OSError:
                    return


def head(length: int, status: str = "200 OK", more: str = "") -> bytes:
    """Says that the connection ends, or the next call may be sent on it while it is being closed, and is lost."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n".encode()


class Enough(Exception):
    """Ends a call from within."""


@pytest.mark.parametrize("call", [beat, ship])
@pytest.mark.parametrize("begin", [head(2000), b"HTTP/1.1 200 OK\r\nX-Name: "], ids=["body", "head"])
def test_an_answer_that_trickles_has_an_end(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, call: Callable[[AttemptLink], None], begin: bytes
) -> None:
    """A byte now and then keeps a client's own limits for each read, here 20 s, from ever being met."""
    monkeypatch.setattr("worker.client._SECONDS", 5.0)
    line = Line(clock, [begin, *[b"x", 1.0] * 10, None])
    with Platform(line.url, "node") as platform, pytest.raises(Unreachable, match="not over within"):
        call(platform.attempt(CLAIMED))


def test_a_body_gets_the_time_that_a_slow_line_needs(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr("worker.client._SECONDS", 5.0)
    monkeypatch.setattr("worker.client._SLOWEST_LINE", 10)
    looked = threading.Event()
    line = Line(clock, [15.0, looked, head(16), b'{"acked_seq": 5}'])
    with Platform(line.url, "node") as platform:
        assert platform.attempt(CLAIMED).records(b"x" * 1000, meanwhile=looked.set).acked_seq == 5
    assert looked.is_set()


def test_other_calls_are_made_while_a_batch_is_on_its_way(clock: Clock) -> None:
    """So that an attempt beats and obeys meanwhile; and what is raised there ends the call."""
    answer = b'{"desired": "cancel", "lease_seconds": 60.0}'
    line = Line(clock, [None], [head(len(answer)), answer])
    heard: list[str] = []
    with Platform(line.url, "node") as platform:
        link = platform.attempt(CLAIMED)

        def meanwhile() -> None:
            if line.taken == 0:
                return  # or the beat would get the batch's answer
            heard.append(link.beat(shipped_seq=0, spooled_bytes=0).desired)
            raise Enough

        with pytest.raises(Enough):
            link.records(b"x", meanwhile=meanwhile)
    assert heard == ["cancel"]


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch, clock: Clock, status: str) -> None:
    monkeypatch.setattr("worker.calls.MAX_ANSWER_BYTES", 1000)
    line = Line(clock, [head(10**9, status), b"x" * 2000, None])
    with Platform(line.url, "node") as platform, pytest.raises(Unreachable, match="over 1,000 bytes"):
        beat(platform.attempt(CLAIMED))


@pytest.mark.parametrize("status", ["200 OK", "502 Bad Gateway"])
def test_an_answer_whose_compression_is_false(clock: Clock, tmp_path: Path, status: str) -> None:
    """As from a proxy; no more reason to end a run than any other answer that is not the platform's."""
    line = Line(clock, [head(5, status, "Content-Encoding: gzip\r\n"), b"wrong"])
    with Platform(line.url, "node") as platform:
        link = platform.attempt(CLAIMED)
        with pytest.raises(Unreachable, match="DecodingError"):
            beat(link)
        with pytest.raises(Unreachable, match="DecodingError"):
            link.fetch(FILE, tmp_path / "x", meanwhile=nothing, patience=0)
    assert list(tmp_path.iterdir()) == []


def test_patience_with_a_file_counts_from_its_last_byte(clock: Clock, tmp_path: Path) -> None:
    """A download that took longer than that, and breaks off, is begun again."""
    line = Line(clock, [head(len(BYTES)), BYTES[:10], 15.0, BYTES[10:20]], [head(len(BYTES)), BYTES])
    with Platform(line.url, "node") as platform:
        platform.attempt(CLAIMED).fetch(FILE, tmp_path / "x", meanwhile=nothing, patience=10.0)
    assert (tmp_path / "x").read_bytes() == BYTES
    assert line.taken == 2


def test_of_a_fetch_that_was_ended_nothing_stays(clock: Clock, tmp_path: Path) -> None:
    def meanwhile() -> None:
        if list(tmp_path.iterdir()):
            raise Enough

    line = Line(clock, [head(len(BYTES)), BYTES[:10], None])
    with Platform(line.url, "node") as platform, pytest.raises(Enough):
        platform.attempt(CLAIMED).fetch(FILE, tmp_path / "x", meanwhile=meanwhile, patience=60)
    assert list(tmp_path.iterdir()) == []
