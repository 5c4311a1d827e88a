"""Answers that are not the platform's, answers that come late, files that arrive broken."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_core.wire import ClaimReply, ClaimRequest, Finish, InputFile
from tests.worker.making import NODE
from worker import presence
from worker.client import BadFile, Platform, Refused, Unreachable
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


@pytest.mark.parametrize("answer", [(404, b"<html>nginx</html>"), (413, b""), (302, b""), (401, b"proxy")])
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
        other = tmp_path / "inputs" / "y.jsonl"
        scripted.answers = [(200, BYTES[:-1] + b"x")]
        with pytest.raises(BadFile, match="SHA-256"):
            link.fetch(FILE, other, meanwhile=lambda: None, patience=0)
    assert not other.exists()


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
    with Platform("http://platform.example", "node") as platform, pytest.raises(Unreachable, match="refused"):
        platform.present(NODE)


def test_presence_ends_only_when_the_token_is_refused(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(presence, "SECONDS", 0.01)
    refusals = [(404, b"<html>"), (503, b""), (422, b'{"code": "bad_request", "message": "cpus"}')]
    scripted.answers = [*refusals, (204, b""), (401, b'{"code": "unknown_token", "message": "no"}')]
    settings = Environment.model_validate({"url": scripted.url, "node_token": "node", "runs_dir": tmp_path / "runs"})
    ended: list[int] = []
    presence.stay_present(settings, threading.Event(), lambda: ended.append(len(scripted.asked))).join(timeout=30)
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
