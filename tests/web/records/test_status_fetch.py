"""The one call of a check over the network: what is called, what is not, and what comes back as an answer."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from cohort.evidence.status import MAX_BYTES
from cohort.evidence.verify.life import NoAnswer
from cohort.evidence.verify.online import fetch_status

SEAL = "5" * 64


class Platform(BaseHTTPRequestHandler):
    """Answers by the path that the address in the card begins with."""

    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        type(self).seen.append((self.path, str(self.headers)))
        kind = self.path.split("/")[1]
        self.send_response({"gone": 404, "elsewhere": 302, "busy": 503, "broken": 500}.get(kind, 200))
        if kind == "elsewhere":
            self.send_header("Location", f"/good/status/{SEAL}.json")
        self.end_headers()
        self.wfile.write(bytes(MAX_BYTES + 2**20) if kind == "large" else b"the status")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Platform.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Platform) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_status_is_what_the_platform_answers(address: str) -> None:
    assert fetch_status(f"{address}/good/", SEAL) == b"the status"
    ((path, headers),) = Platform.seen
    assert path == f"/good/status/{SEAL}.json"
    names = {line.partition(":")[0] for line in headers.split("\n") if line}
    assert names == {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}, "nothing else is sent"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gone", "it knows no record with this seal"),
        ("elsewhere", "redirects are not followed"),
        ("broken", "it answered with status 500$"),
        ("large", "its answer is larger than"),
    ],
)
def test_what_is_no_answer(address: str, kind: str, words: str) -> None:
    with pytest.raises(NoAnswer, match=words):
        fetch_status(f"{address}/{kind}", SEAL)
    assert len(Platform.seen) == 1


def test_a_platform_that_is_signing_one_now_is_not_waited_for_beyond_the_deadline(address: str) -> None:
    with pytest.raises(NoAnswer, match="it is making one now"):
        fetch_status(f"{address}/busy", SEAL, seconds=3)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://cohort.example", "only https is asked"),
        ("ftp://127.0.0.1", "only https is asked"),
        ("file:///etc/passwd", "only https is asked"),
        ("", "only https is asked"),
        ("https://user:secret@cohort.example", "holds more than a host and a path"),
        ("https://cohort.example/?next=", "holds more than a host and a path"),
        ("https://cohort.example/a b", "holds more than a host and a path"),
        ("https://cohort.example/\r\nX: y", "holds more than a host and a path"),
        ("https://[::1", "is no web address"),
        ("https://cohort.example:99999", "is no web address"),
    ],
)
def test_addresses_that_are_not_called(address: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(NoAnswer, match=words):
        fetch_status(address, SEAL)


@pytest.mark.parametrize(
    "at", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "168.63.129.16", "224.0.0.1", "240.0.0.1"]
)
def test_a_name_that_leads_to_a_cloud_s_metadata_is_not_called(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [row])
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("called"))
    with pytest.raises(NoAnswer, match="it is not called"):
        fetch_status("https://cohort.example", SEAL)


def test_a_seal_that_is_none_goes_nowhere() -> None:
    with pytest.raises(NoAnswer, match="the seal is none"):
        fetch_status("https://cohort.example", "../../admin")
