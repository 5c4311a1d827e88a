"""The web server's connections, over real sockets and by a clock of the test: who gets a thread, who is closed when."""

import io
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from wsgiref.util import FileWrapper

import pytest
from waitress import wasyncore
from waitress.task import ThreadedTaskDispatcher

from cohort.server import connections
from cohort.server.connections import LEAST_RATE, Server
from tests.processes import wait_for

SMALL, LIMIT, ROOM = 1000, 50_000, 100_000
LARGE = {"/large": LIMIT, "/api/worker/records": LIMIT}


class Site:
    """A server with one thread a pool whose loop turns only while the test waits; the application notes its calls."""

    def __init__(self, *, trusted_proxy: bool = False) -> None:
        self.now = 0.0
        self.calls: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.file: IO[bytes] = io.BytesIO()
        self.go = threading.Event()
        self.clients: list[socket.socket] = []
        self.pools = {pool: ThreadedTaskDispatcher() for pool in ("pages", "workers", "files")}
        for pool in self.pools.values():
            pool.set_thread_count(1)
        self.map: dict[int, Any] = {}
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.server = Server(
            self.application,
            listener,
            map=self.map,
            pools=self.pools,
            body_limit=lambda path: LARGE.get(path, SMALL),
            small=SMALL,
            room=ROOM,
            workers="/api/worker/",
            trusted_proxy=trusted_proxy,
            clock=lambda: self.now,
        )

    def application(self, environ: dict[str, Any], start: Any) -> Any:
        self.calls.append(environ)
        self.bodies.append(environ["wsgi.input"].read())
        path = environ["PATH_INFO"]
        if path.startswith("/wait") or path.endswith("/wait"):
            self.go.wait()
        size = 30_000_000 if path == "/download" else 2
        if path == "/nothing":
            start("204 No Content", [])
            return []
        if path == "/file":
            start("200 OK", [("Content-Length", str(self.file.seek(0, 2)))])
            self.file.seek(0)
            return environ["wsgi.file_wrapper"](self.file)
        start("200 OK", [("Content-Length", str(size))])
        return [b"o" * size]

    @property
    def paths(self) -> list[str]:
        return [environ["PATH_INFO"] for environ in self.calls]

    def turn(self, *, at: float | None = None) -> None:
        """The loop reads and writes what there is; then, at the time `at`, looks who is late."""
        for _ in range(10):
            wasyncore.loop(timeout=0.01, use_poll=True, map=self.map, count=1)
        if at is not None:
            self.now = at
            self.server.close_late()
            wasyncore.loop(timeout=0.01, use_poll=True, map=self.map, count=1)

    def until(self, true: Any) -> None:
        wait_for(lambda: (self.turn(), true())[1], "the server does it")

    def send(self, data: bytes) -> socket.socket:
        client = socket.create_connection(self.address)
        client.sendall(data)
        client.setblocking(False)
        self.clients.append(client)
        self.turn()
        return client

    def answer(self, client: socket.socket, length: int = 0) -> bytes:
        """What the client gets until the server closes, a whole short answer is there, or more than `length` bytes."""
        got = bytearray()

        def whole() -> bool:
            while select.select([client], [], [], 0)[0]:
                data = client.recv(65536)
                got.extend(data)
                if not data:
                    return True
            if length:
                return len(got) > length
            return got.endswith(b"\r\n\r\noo") or (got.startswith(b"HTTP/1.1 204") and got.endswith(b"\r\n\r\n"))

        self.until(whole)
        return bytes(got)

    def close(self) -> None:
        self.go.set()
        for pool in self.pools.values():
            pool.shutdown()
        for client in self.clients:
            client.close()
        wasyncore.close_all(self.map)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def get(path: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()


def post(path: str, length: int | str, *more: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *more, "", ""]).encode()


# ---------------------------------------------------------------------- slow clients


def test_a_request_gets_a_thread_once_it_is_whole(site: Site) -> None:
    slow = [site.send(post("/page", 10) + b"12345") for _ in range(20)]
    half = [site.send(b"GET /page HTTP/1.1\r\nHo") for _ in range(20)]
    assert site.paths == []
    assert site.answer(site.send(get("/other"))).endswith(b"oo"), "one thread, and it is free"
    slow[0].sendall(b"67890")
    assert site.answer(slow[0]).endswith(b"oo")
    assert (site.paths, site.bodies[-1]) == (["/other", "/page"], b"1234567890")
    assert len(half) + len(slow) + 1 == len(site.server.active_channels)


@pytest.mark.parametrize(
    ("sent", "seconds", "answer"),
    [
        (b"", 10, b""),
        (b"POST /page HTTP/1.1\r\nHos", 10, b"HTTP/1.1 408"),
        (post("/page", 1000) + b"1", 30, b"HTTP/1.1 408"),
        (post("/large", LIMIT) + b"x" * 2 * LEAST_RATE, 32, b"HTTP/1.1 408"),
        (get("/page"), 120, b"HTTP/1.1 200"),
    ],
    ids=["nothing", "half of the headers", "a byte of the body", "a body that began well", "kept open"],
)
def test_a_client_has_so_much_time(site: Site, sent: bytes, seconds: float, answer: bytes) -> None:
    client = site.send(sent)
    if answer.endswith(b"200"):
        site.until(lambda: site.paths == ["/page"])
    site.turn(at=seconds)
    assert len(site.server.active_channels) == 1
    site.turn(at=seconds + 1.1)
    site.until(lambda: not site.server.active_channels)
    got = site.answer(client)
    assert got.startswith(answer)
    assert bool(got) is bool(answer)


def test_each_request_of_a_connection_has_its_own_time(site: Site) -> None:
    client = site.send(get("/one"))
    site.answer(client)
    site.turn(at=100)
    client.sendall(post("/two", 5) + b"12")
    site.turn()
    site.turn(at=129)
    client.sendall(b"345")
    assert site.answer(client).endswith(b"oo")


def test_who_takes_a_response_too_slowly_holds_no_thread_and_is_closed(site: Site) -> None:
    client = site.send(get("/download"))
    site.until(lambda: site.paths == ["/download"])
    assert site.answer(site.send(get("/other"))).endswith(b"oo")
    (channel,) = [channel for channel in site.server.active_channels.values() if channel.total_outbufs_len]
    site.turn(at=5)
    site.turn(at=25)
    assert channel.connected
    client.recv(100)
    site.turn(at=26.5)
    assert not channel.connected


def test_a_file_is_sent_without_a_thread_and_one_from_elsewhere_with_one(site: Site, tmp_path: Path) -> None:
    """Here the loop reads the file while its client takes it, whatever its size; a store's would hold up everyone."""
    local = tmp_path / "card.zip"
    local.write_bytes(b"x" * 30_000_000)
    site.file = local.open("rb")
    slow = site.send(get("/file"))
    site.until(lambda: len(site.calls) == 1)
    assert site.answer(site.send(get("/other"))).endswith(b"oo")
    assert [channel.total_outbufs_len > 0 for channel in site.server.active_channels.values()].count(True) == 1
    assert len(site.answer(slow, length=30_000_000)) > 30_000_000
    site.until(lambda: site.file.closed)
    site.file = io.BytesIO(b"oo")
    assert site.answer(site.send(get("/file"))).endswith(b"oo")
    assert isinstance(site.calls[-1]["wsgi.file_wrapper"](site.file), FileWrapper)


def test_of_too_many_connections_those_without_a_request_close_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 3)
    waits = site.send(get("/wait"))
    body = site.send(post("/page", 10) + b"1")
    idle = site.send(b"")
    assert site.answer(site.send(get("/api/worker/x"))).endswith(b"oo")
    assert site.answer(idle) == b""
    body.sendall(b"234567890")
    site.go.set()
    assert site.answer(waits).endswith(b"oo")
    assert site.answer(body).endswith(b"oo")


def test_who_left_while_the_request_waited_is_not_served(site: Site) -> None:
    waits = site.send(get("/wait"))
    site.until(lambda: site.paths == ["/wait"])
    left = site.send(get("/left"))
    stays = site.send(get("/stays"))
    left.close()
    site.until(lambda: len(site.server.active_channels) == 2)
    site.go.set()
    assert site.answer(stays).endswith(b"oo")
    assert site.answer(waits).endswith(b"oo")
    assert site.paths == ["/wait", "/stays"]


# ---------------------------------------------------------------------- pools


def test_pages_cannot_take_the_threads_of_workers_nor_their_uploads_those_of_beats(site: Site) -> None:
    for path in ("/wait", "/wait", "//api/worker/uploads/wait", "/api/worker/files/wait"):
        site.send(get(path))
    site.until(lambda: len(site.calls) == 2)
    assert site.answer(site.send(get("/api/worker/heartbeat"))).endswith(b"oo")
    assert sorted(site.paths) == ["/api/worker/heartbeat", "/api/worker/uploads/wait", "/wait"]


# ---------------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", ["/page", "//page", "/unknown", "/large", "/api/worker/records"])
def test_a_body_that_is_too_large_is_answered_at_the_headers(site: Site, path: str) -> None:
    """By the application, which gets the length and no body; and the connection closes."""
    length = LARGE.get(path, SMALL) + 1
    answer = site.answer(site.send(post(path, length, "Expect: 100-continue")))
    assert answer.startswith(b"HTTP/1.1 200"), "without 100 Continue before"
    assert b"Connection: close" in answer
    assert site.calls[0]["CONTENT_LENGTH"] == str(length)
    assert site.bodies == [b""]


def test_a_body_without_its_length_is_not_read(site: Site) -> None:
    chunked = b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n"
    assert b"Connection: close" in site.answer(site.send(chunked))
    assert site.calls[0]["HTTP_TRANSFER_ENCODING"] == "chunked"
    assert site.bodies == [b""]


def test_who_sends_a_refused_body_all_the_same_can_read_the_answer(site: Site) -> None:
    """It is dropped: a connection that closed at once would be reset, with the answer in it."""
    client = site.send(post("/page", 20_000_000))
    left = 20_000_000
    while left:
        with suppress(BlockingIOError):
            left -= client.send(b"x" * min(left, 1 << 20))
        site.turn()
    assert site.answer(client).startswith(b"HTTP/1.1 200")
    client.close()
    site.until(lambda: not site.server.active_channels)
    assert site.paths == ["/page"]


def test_a_refused_body_has_so_much_time_to_end(site: Site) -> None:
    client = site.send(post("/page", SMALL + 1))
    site.answer(client)
    site.turn(at=19)
    assert len(site.server.active_channels) == 1
    site.turn(at=21)
    assert not site.server.active_channels


def test_what_follows_a_refused_body_is_no_request(site: Site) -> None:
    client = site.send(post("/page", SMALL + 1) + get("/smuggled"))
    assert site.answer(client).count(b"HTTP/1.1") == 1
    assert site.paths == ["/page"]


@pytest.mark.parametrize("length", ["1" + "0" * 5000, "-1", "+5", "1_0", "5, 5"])
def test_a_length_that_is_no_number_is_refused(site: Site, length: str) -> None:
    assert site.answer(site.send(post("/page", length))).startswith(b"HTTP/1.1 400")
    assert site.calls == []


def test_large_bodies_have_so_much_room_together(site: Site) -> None:
    bodies = [site.send(post("/large", LIMIT) + b"x") for _ in range(2)]
    assert site.answer(site.send(post("/large", LIMIT) + b"x")).startswith(b"HTTP/1.1 503")
    for path, length in (("/page", SMALL), ("/api/worker/records", LIMIT)):
        assert site.answer(site.send(post(path, length) + b"x" * length)).endswith(b"oo")
    count = len(site.server.active_channels)
    bodies[0].close()
    site.until(lambda: len(site.server.active_channels) == count - 1)
    assert site.answer(site.send(post("/large", LIMIT) + b"x" * LIMIT)).endswith(b"oo")


def test_without_room_on_the_disk_the_answer_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "BUFFER_BYTES", 10_000)
    made = Site()
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert made.answer(made.send(post("/large", LIMIT) + b"x" * LIMIT)).startswith(b"HTTP/1.1 507")
    made.close()
    assert "no room for the body" in caplog.text


# ---------------------------------------------------------------------- HTTP


def test_answers_without_a_body_keep_their_connection(site: Site) -> None:
    client = site.send(get("/nothing"))
    assert b"Connection: close" not in site.answer(client)
    client.sendall(b"HEAD /head HTTP/1.1\r\nHost: x\r\n\r\n")
    site.until(lambda: len(site.calls) == 2)
    client.sendall(get("/page"))
    got = site.answer(client)
    assert (got.count(b"HTTP/1.1 200"), got.count(b"oo")) == (2, 1)
    assert site.paths == ["/nothing", "/head", "/page"]


@pytest.mark.parametrize(("trusted", "address", "scheme"), [(True, "203.0.113.9", "https"), (False, "127.0.0.1", None)])
def test_the_client_s_address_is_the_proxy_s_word_or_that_of_the_connection(
    trusted: bool, address: str, scheme: str | None
) -> None:
    """Of several addresses the last: the client makes up those before."""
    made = Site(trusted_proxy=trusted)
    headers = ("X-Forwarded-For: 192.0.2.1, 203.0.113.9", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil")
    made.answer(made.send(get("/", *headers)))
    made.close()
    (call,) = made.calls
    assert (call["REMOTE_ADDR"], call.get("HTTP_X_FORWARDED_PROTO")) == (address, scheme)
    assert "HTTP_X_FORWARDED_HOST" not in call


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("203.0.113.9:4711", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("192.0.2.1, ::FFFF:203.0.113.9", "203.0.113.9"),
        ("2001:db8::9", "2001:db8::9"),
        ("[2001:db8::9]:4711", "2001:db8::9"),
    ],
)
def test_an_address_is_read_however_a_proxy_writes_it(forwarded: str, address: str) -> None:
    made = Site(trusted_proxy=True)
    made.answer(made.send(get("/", f"X-Forwarded-For: {forwarded}")))
    made.close()
    assert made.calls[0]["REMOTE_ADDR"] == address
