"""Answers that are not the platform's, answers that come late, files that arrive broken."""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_core.wire import ClaimReply, ClaimRequest, Finish, InputFile
from tests.processes import DEADLINE
from tests.worker.making import NODE
from worker import presence
from worker.client import AttemptLink, BadFile, Platform, Refused, Unreachable
from worker.environment import Environment

Answer = tuple[int, bytes]
BYTES = b"0123456789" * 1000
FILE = InputFile(path="inputs/x.jsonl", sha256=hashlib.sha256(BYTES).hexdigest(), size=len(BYTES))
CLAIMED = ClaimReply(
    attempt_id=7,
    fence=3,
    token="secret",
    run_id=1,
    run_name="a run",
    config={},
    files=[FILE],
    heartbeat_seconds=10,
    lease_seconds=60,
)
FINISH = Finish(fence=3, end="failed", code="error", message="", last_seq=0)


class Scripted:
    """An HTTP server that gives the given answers in turn, the last one for ever, and notes what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                outer.asked.append((self.path, self.headers["Authorization"]))
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


def test_5xx_is_tried_again_with_the_attempt_s_token(scripted: Scripted) -> None:
    scripted.answers = [(503, b""), (502, b"<html>"), (429, b""), (204, b"")]
    with Platform(scripted.url, "node") as platform:
        between: list[int] = []
        platform.attempt(CLAIMED).finish(FINISH, patience=60, meanwhile=lambda: between.append(1))
    assert scripted.asked == [("/api/worker/v1/attempts/7/finish", "Bearer secret")] * 4
    assert len(between) > 3  # between the tries, and while the next is waited for


def test_without_patience_once_is_enough(scripted: Scripted) -> None:
    scripted.answers = [(503, b"")]
    with Platform(scripted.url, "node") as platform, pytest.raises(Unreachable, match="503"):
        platform.attempt(CLAIMED).beat(shipped_seq=0, spooled_bytes=0)
    assert len(scripted.asked) == 1


@pytest.mark.parametrize(
    ("answer", "code", "disowned"),
    [
        ((409, b'{"code": "stale_fence", "message": "ended"}'), "stale_fence", True),
        ((401, b'{"code": "unknown_token", "message": "no"}'), "unknown_token", True),
        ((422, b'{"code": "bad_record", "message": "record 3"}'), "bad_record", False),
    ],
)
def test_a_no_is_a_no(scripted: Scripted, answer: Answer, code: str, disowned: bool) -> None:
    scripted.answers = [answer]
    with Platform(scripted.url, "node") as platform, pytest.raises(Refused) as caught:
        platform.attempt(CLAIMED).finish(FINISH, patience=60, meanwhile=lambda: None)
    assert (caught.value.code, caught.value.disowned) == (code, disowned)
    assert len(scripted.asked) == 1


@pytest.mark.parametrize("answer", [(404, b"<html>nginx</html>"), (302, b""), (401, b"proxy")])
def test_a_no_that_is_not_the_platform_s_is_tried_again(scripted: Scripted, answer: Answer) -> None:
    """A proxy in between says so while the platform is started again, and no run should die of that."""
    scripted.answers = [answer, answer, (204, b"")]
    with Platform(scripted.url, "node") as platform:
        platform.attempt(CLAIMED).finish(FINISH, patience=60, meanwhile=lambda: None)
        assert len(scripted.asked) == 3
        scripted.answers = [answer]
        with pytest.raises(Unreachable, match=f"answered {answer[0]}.*is COHORT_URL the platform's address"):
            platform.attempt(CLAIMED).beat(shipped_seq=0, spooled_bytes=0)


def test_an_answer_that_is_not_the_platform_s(scripted: Scripted) -> None:
    scripted.answers = [(200, b"<html>log in to the network</html>")]
    with Platform(scripted.url, "node") as platform, pytest.raises(Unreachable, match="no BeatReply"):
        platform.attempt(CLAIMED).beat(shipped_seq=0, spooled_bytes=0)


def test_nobody_listens() -> None:
    with Platform("http://127.0.0.1:1", "node") as platform, pytest.raises(Unreachable):
        platform.claim(1, NODE, patience=0)


def test_a_file_arrives_whole_or_not_at_all(scripted: Scripted, tmp_path: Path) -> None:
    target, chunks = tmp_path / "inputs" / "x.jsonl", []
    scripted.answers = [(503, b""), (200, BYTES)]
    with Platform(scripted.url, "node") as platform:
        link = platform.attempt(CLAIMED)
        link.fetch(FILE, target, meanwhile=lambda: chunks.append(1), patience=60)
        assert target.read_bytes() == BYTES
        assert chunks
        link.fetch(FILE, target, meanwhile=lambda: None, patience=0)  # it is here already
        assert len(scripted.asked) == 2


@pytest.mark.parametrize("wrong", [BYTES[:-1] + b"x", BYTES + b"x", b"<html>one moment</html>"])
def test_a_file_that_arrives_wrong_is_fetched_again_and_then_said_so(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    monkeypatch.setattr("worker.client._ANEW_AFTER", (0.01, 0.01))
    with Platform(scripted.url, "node") as platform:
        link = platform.attempt(CLAIMED)
        scripted.answers = [(200, wrong), (200, wrong), (200, BYTES)]
        link.fetch(FILE, tmp_path / "x", meanwhile=lambda: None, patience=0)
        assert (tmp_path / "x").read_bytes() == BYTES
        scripted.answers = [(200, wrong)]
        with pytest.raises(BadFile, match=r"announced.*It was fetched 3 times"):
            link.fetch(FILE, tmp_path / "y", meanwhile=lambda: None, patience=0)
    assert len(scripted.asked) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_no_call_follows_a_redirect_with_its_token(scripted: Scripted) -> None:
    scripted.answers = [(302, b"")]
    with Platform(scripted.url, "node") as platform, pytest.raises(Unreachable, match="COHORT_URL"):
        platform.claim(1, NODE, patience=0)


def test_this_machine_is_asked_past_any_proxy(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
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
    presence.stay_present(settings, threading.Event(), lambda: ended.append(len(scripted.asked))).join(DEADLINE)
    assert scripted.asked == [("/api/worker/v1/node", "Bearer node")] * 5
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
    """A server that answers each connection's first call by writing what it is given, piece by piece."""

    def __init__(self, *scripts: list[bytes | float]) -> None:
        """Bytes are sent, a number of seconds is waited; after its script a connection is closed. One for each
        connection in turn, the last for all others."""
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

    def _play(self, near: socket.socket, script: list[bytes | float]) -> None:
        with near, near.makefile("rb") as request:
            # All of it: what is closed with bytes unread takes back what it has sent.
            size = 0
            while line := request.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            request.read(size)
            for piece in script:
                if isinstance(piece, float):
                    time.sleep(piece)
                    continue
                try:
                    near.sendall(piece)
                except OSError:
                    return


def head(length: int, status: str = "200 OK", more: str = "") -> bytes:
    """Says that the connection ends, or the next call may be sent on it while it is being closed, and is lost."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n".encode()


def beat(link: AttemptLink) -> None:
    link.beat(shipped_seq=0, spooled_bytes=0)


def ship(link: AttemptLink) -> None:
    link.records(b"x" * 100, meanwhile=lambda: None)


@pytest.mark.parametrize("call", [beat, ship])
@pytest.mark.parametrize("where", ["head", "body"])
def test_an_answer_that_trickles_has_an_end(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[AttemptLink], None], where: str
) -> None:
    """A byte now and then keeps a client's own limits for each read from ever being met."""
    monkeypatch.setattr("worker.client._SECONDS", 0.5)
    drops: list[bytes | float] = [piece for _ in range(2000) for piece in (b"x", 0.05)]
    line = Line([head(2000) if where == "body" else b"HTTP/1.1 200 OK\r\nX-Name: ", *drops])
    with Platform(line.url, "node") as platform, pytest.raises(Unreachable, match="not over within"):
        call(platform.attempt(CLAIMED))


def test_a_body_gets_the_time_that_a_slow_line_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.client._SECONDS", 0.1)
    monkeypatch.setattr("worker.client._SLOWEST_LINE", 10)
    line = Line([1.0, head(15), b'{"acked_seq": 5}'[:15]], [1.0, head(16), b'{"acked_seq": 5}'])
    looks: list[int] = []
    with Platform(line.url, "node") as platform:
        link = platform.attempt(CLAIMED)
        with pytest.raises(Unreachable, match="no IngestReply"):
            link.records(b"x" * 1000, meanwhile=lambda: looks.append(1))
        assert link.records(b"x" * 1000, meanwhile=lambda: looks.append(1)).acked_seq == 5
    assert looks


def test_other_calls_are_made_while_a_batch_is_on_its_way() -> None:
    """So that an attempt beats and obeys meanwhile; and what is raised there ends the call."""

    class Enough(Exception):
        pass

    said = b'{"desired": "cancel", "lease_seconds": 60.0}'
    line = Line([60.0], [head(len(said)), said])
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


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.calls.MAX_ANSWER_BYTES", 1000)
    for status in ("200 OK", "404 Not Found"):
        line = Line([head(10**9, status), b"x" * 2000, 60.0])
        with (
            Platform(line.url, "node") as platform,
            pytest.raises(Unreachable, match="the answer has over 1,000 bytes"),
        ):
            beat(platform.attempt(CLAIMED))


@pytest.mark.parametrize("status", ["200 OK", "502 Bad Gateway"])
def test_an_answer_whose_compression_is_false(tmp_path: Path, status: str) -> None:
    """As from a proxy; no more reason to end a run than any other answer that is not the platform's."""
    line = Line([head(5, status, "Content-Encoding: gzip\r\n"), b"wrong"])
    with Platform(line.url, "node") as platform:
        link = platform.attempt(CLAIMED)
        with pytest.raises(Unreachable, match="DecodingError"):
            beat(link)
        with pytest.raises(Unreachable, match="DecodingError"):
            link.fetch(FILE, tmp_path / "x", meanwhile=lambda: None, patience=0)
    assert list(tmp_path.iterdir()) == []


def test_patience_with_a_file_counts_from_its_last_byte(tmp_path: Path) -> None:
    """A download that took longer than that, and breaks off, is begun again."""
    slow: list[bytes | float] = [head(len(BYTES)), BYTES[:10], 2.0, BYTES[10:20]]
    line = Line(slow, [head(len(BYTES)), BYTES])
    with Platform(line.url, "node") as platform:
        platform.attempt(CLAIMED).fetch(FILE, tmp_path / "x", meanwhile=lambda: None, patience=1.0)
    assert (tmp_path / "x").read_bytes() == BYTES
    assert line.taken == 2


def test_of_a_fetch_that_was_ended_nothing_stays(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def meanwhile() -> None:
        if list(tmp_path.iterdir()):
            raise Enough

    line = Line([head(len(BYTES)), BYTES[:10], 60.0])
    with Platform(line.url, "node") as platform, pytest.raises(Enough):
        platform.attempt(CLAIMED).fetch(FILE, tmp_path / "x", meanwhile=meanwhile, patience=60)
    assert list(tmp_path.iterdir()) == []


def test_a_413_of_a_proxy_names_the_limit_to_raise(scripted: Scripted) -> None:
    scripted.answers = [(413, b"<html>nginx</html>")]
    with Platform(scripted.url, "node") as platform, pytest.raises(Unreachable, match="client_max_body_size 40m"):
        ship(platform.attempt(CLAIMED))
    scripted.answers = [(413, b'{"code": "too_large", "message": "too much"}')]
    with Platform(scripted.url, "node") as platform, pytest.raises(Refused, match="too much"):
        ship(platform.attempt(CLAIMED))
