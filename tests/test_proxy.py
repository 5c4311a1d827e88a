"""docker/nginx.conf on a real nginx, before a server that writes down what arrives."""

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from cohort.server.limits import FORM_BYTES, larger_limits
from tests.needs import needs
from tests.processes import free_port, wait_for

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
CONFIG = Path(__file__).resolve().parents[1] / "docker" / "nginx.conf"


@dataclass
class Behind:
    """A server behind the proxy; `arrived` holds (method, path, headers, bytes of the body)."""

    server: ThreadingHTTPServer
    arrived: list[tuple[str, str, dict[str, str], int]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


def behind() -> Behind:
    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            size = len(self.rfile.read(length))
            made.arrived.append((self.command, self.path, dict(self.headers.items()), size))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = _take

        def log_message(self, format: str, *args: Any) -> None:
            return

    made = Behind(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    return made


@dataclass
class Proxy:
    ports: dict[int, int]
    """By the port of docker/nginx.conf, the one that it has here."""
    pages: Behind
    workers: Behind

    def call(self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> HTTPResponse:
        with closing(HTTPSConnection("127.0.0.1", self.ports[8443], context=TRUSTING)) as connection:
            connection.request(method, path, body, {"Host": "cohort.example.org", **headers})
            answer = connection.getresponse()
            answer.read()
            return answer

    def open(self) -> ssl.SSLSocket:
        return TRUSTING.wrap_socket(socket.create_connection(("127.0.0.1", self.ports[8443])))

    def plain(self, port: int, path: str, host: str = "cohort.example.org") -> HTTPResponse:
        with closing(HTTPConnection("127.0.0.1", self.ports[port])) as connection:
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            answer.read()
            return answer


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    needs("nginx")
    folder = tmp_path_factory.mktemp("proxy")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=cohort.example.org"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run([*words, *files], check=True, capture_output=True)
    ports = {port: free_port() for port in (8080, 8081, 8443)}
    made = Proxy(ports, behind(), behind())
    text = CONFIG.read_text(encoding="utf-8")
    for port, here in ports.items():
        text = re.sub(rf"listen {port}\b", f"listen 127.0.0.1:{here}", text)
    text = text.replace("web:8400", f"127.0.0.1:{made.pages.port}").replace(
        "ingest:8400", f"127.0.0.1:{made.workers.port}"
    )
    text = text.replace("/run/secrets/tls_certificate", str(folder / "certificate"))
    text = text.replace("/run/secrets/tls_key", str(folder / "key")).replace("/tmp/nginx.pid", str(folder / "pid"))
    text = text.replace("/var/cache/cohort", str(folder)).replace("/dev/stdout", str(folder / "access"))
    (folder / "nginx.conf").write_text(text)
    log = folder / "log"
    with log.open("wb") as out:
        command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr", "-g", "daemon off;"]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_for(lambda: _listens(ports[8443]), lambda: log.read_text(), process)
        yield made
    finally:
        process.terminate()
        process.wait()
        for part in (made.pages, made.workers):
            part.server.shutdown()
            part.server.server_close()


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def test_what_the_platform_believes_is_the_proxys_own_word(proxy: Proxy) -> None:
    forged = {
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Proto": "http",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Port": "1",
        "X-Real-IP": "6.6.6.6",
        "Forwarded": "for=6.6.6.6",
    }
    assert proxy.call("GET", "/runs/", **forged).status == 200
    headers = {name.lower(): value for name, value in proxy.pages.arrived[-1][2].items()}
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-forwarded-proto"] == "https"
    assert headers["host"] == "cohort.example.org"
    assert not {"x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded"} & set(headers)


def test_workers_calls_and_pages_go_to_their_own_servers(proxy: Proxy) -> None:
    proxy.call("POST", "/api/worker/v1/node", b"{}")
    assert proxy.workers.arrived[-1][1] == "/api/worker/v1/node"
    assert not [path for _, path, _, _ in proxy.pages.arrived if path.startswith("/api/worker/")]
    proxy.call("POST", "/api/v1/projects/ours/runs", b"{}")
    assert proxy.pages.arrived[-1][1] == "/api/v1/projects/ours/runs"
    assert proxy.plain(8081, "/api/v1/projects/ours/runs", "proxy").status == 404
    assert proxy.plain(8081, "/api/worker/v1/pulse", "proxy").status == 200
    assert proxy.workers.arrived[-1][1] == "/api/worker/v1/pulse"
    assert proxy.plain(8081, "/login/", "proxy").status == 404


def test_plain_http_is_sent_to_https_and_reaches_nothing(proxy: Proxy) -> None:
    before = len(proxy.pages.arrived)
    answer = proxy.plain(8080, "/login/?next=/runs/")
    assert (answer.status, answer.headers["Location"]) == (308, "https://cohort.example.org/login/?next=/runs/")
    assert len(proxy.pages.arrived) == before


LARGER: dict[str, tuple[Any, ...]] = {
    "dataset_new": ("ours",),
    "suite_new": ("ours",),
    "suite_version_new": ("ours", 7),
    "run_import": ("ours", 7),
    "imported_run_new": ("ours",),
    "run_statements": ("ours", 7),
    "standing_answers": ("ours",),
    "verify_page": (),
    "worker_api:records": (7,),
    "worker_api:uploads": (7, "0" * 64),
    "worker_api:requested_uploads": (7, "0" * 64),
    "worker_api:job_finished": (7,),
    "worker_api:job_scores": (7,),
}
"""By the name of a view that takes a larger body than a form: what its address is made of."""


def test_the_larger_bodies_are_those_that_cohort_takes() -> None:
    assert LARGER.keys() == larger_limits().keys()


@pytest.mark.parametrize("name", ["run_new", *LARGER])
def test_a_body_is_refused_at_its_headers_above_what_cohort_takes(proxy: Proxy, name: str) -> None:
    """Below, 100 Continue: the proxy would read it."""
    path, taken = reverse(name, args=LARGER.get(name, ("ours",))), larger_limits().get(name, FORM_BYTES)
    for length, wanted in ((taken, b"100"), (4 * taken, b"413")):
        with proxy.open() as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: cohort.example.org\r\nExpect: 100-continue\r\n"
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
            assert connection.recv(64).split()[1] == wanted


def test_a_slow_body_reaches_cohort_only_once_it_is_whole(proxy: Proxy) -> None:
    """What 64 clients have begun is not seen behind the proxy, which answers others."""
    before, opened = len(proxy.pages.arrived), []
    try:
        for _ in range(64):
            connection = proxy.open()
            connection.sendall(b"POST /login/slow/ HTTP/1.1\r\nHost: cohort.example.org\r\nContent-Length: 4\r\n\r\nab")
            opened.append(connection)
        assert proxy.call("GET", "/another/").status == 200
        assert [path for _, path, _, _ in proxy.pages.arrived[before:]] == ["/another/"]
        opened[0].sendall(b"cd")
        assert opened[0].recv(64).split()[1] == b"200"
        assert proxy.pages.arrived[-1][1::2] == ("/login/slow/", 4)
    finally:
        for connection in opened:
            connection.close()


def test_a_body_in_chunks_has_its_length_behind_the_proxy(proxy: Proxy) -> None:
    assert proxy.call("POST", "/runs/new/", iter([b"ab", b"cd"])).status == 200
    method, path, headers, size = proxy.pages.arrived[-1]
    assert (method, path, size) == ("POST", "/runs/new/", 4)
    assert headers["Content-Length"] == "4"
    assert "Transfer-Encoding" not in headers


def _body(got: bytes) -> bytes:
    return got.partition(b"HTTP/1.1 429")[2].partition(b"\r\n\r\n")[2]


def _limited(proxy: Proxy, request: bytes) -> bytes:
    """What is answered to so many at once that the time they take does not matter, up to the first refusal."""
    got = b""
    with proxy.open() as connection:
        connection.sendall(120 * request)
        while b"\n" not in _body(got) and (data := connection.recv(65536)):
            got += data
    return got[got.index(b"HTTP/1.1 429") :]


def test_signing_in_is_limited_for_an_address(proxy: Proxy) -> None:
    assert _limited(proxy, b"POST /login/ HTTP/1.1\r\nHost: cohort.example.org\r\nContent-Length: 3\r\n\r\na=b")
    assert proxy.call("GET", "/runs/").status == 200


def test_the_status_of_records_is_limited_for_an_address_in_words(proxy: Proxy) -> None:
    path = f"/status/{'0' * 64}.json".encode()
    head, _, body = _limited(proxy, b"GET " + path + b" HTTP/1.1\r\nHost: cohort.example.org\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    assert b"Content-Type: application/json\r\n" in head
    assert b"Retry-After: 1" in head
    assert "too many" in json.loads(body.partition(b"\n")[0])["error"]
    assert proxy.call("GET", "/runs/").status == 200
