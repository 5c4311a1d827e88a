"""The one call of a check over the network: the issuing platform's own status of a record.

The address is in the card's attestation, and is called only where a known key signed that: still, whoever holds such a
key must not be able to use a reader's machine against others. So there is one GET of one path that holds nothing but
the seal; over https, or http to this machine; to an address that was looked up once and is none of a cloud's metadata
service; without redirects, cookies, credentials or proxies; within a deadline and a size. The standard library alone,
because verify.pyz has no other (`grpo_core.runtime.http` is what everything else calls with).
"""

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

from cohort.evidence.status import MAX_BYTES
from cohort.evidence.verify.life import NoAnswer
from grpo_core.runtime.addresses import NEAR, non_public

SECONDS = 10.0
"""For all of it, from looking up the name to the reply's last byte."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SEAL = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
_CHUNK = 1 << 16
_MOST_ADDRESSES = 4
_WAIT = 2.0
"""Before the platform is asked again that is signing a status at this moment."""
Result = TypeVar("Result")


def fetch_status(address: str, seal: str, *, seconds: float = SECONDS) -> bytes:
    """The body that `<address>/status/<seal>.json` answers with. Raises NoAnswer."""
    if not _SEAL.fullmatch(seal):
        raise NoAnswer("the seal is none")
    scheme, host, port, base = _parts(address)
    until = time.monotonic() + seconds
    path = f"{base}/status/{seal}.json"
    while True:
        status, body = _get(scheme, host, port, path, until)
        if status != 503 or until - time.monotonic() < 2 * _WAIT:
            break
        time.sleep(_WAIT)
    if status == 200:
        return body
    meaning = {404: "it knows no record with this seal", 429: "it was asked too often", 503: "it is making one now"}
    moved = "; redirects are not followed" if 300 <= status < 400 else ""
    raise NoAnswer(meaning.get(status, f"it answered with status {status}{moved}"))


def _parts(address: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path without a slash at its end. Raises NoAnswer for what is not asked."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise NoAnswer(f"{address[:100]!a} is no web address") from None
    plain = parts.scheme == "http" and host in _LOOPBACK
    if not host or (parts.scheme != "https" and not plain):
        raise NoAnswer("only https is asked, and http on this machine")
    if "@" in parts.netloc or parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise NoAnswer(f"{address[:100]!a} holds more than a host and a path")
    try:
        name = host if ":" in host else host.encode("idna").decode()
    except UnicodeError:
        raise NoAnswer(f"{host[:100]!a} is no name of a host") from None
    return parts.scheme, name, port or {"http": 80, "https": 443}[parts.scheme], parts.path.rstrip("/")


def _get(scheme: str, host: str, port: int, path: str, until: float) -> tuple[int, bytes]:
    connection = _connected(host, port, until)
    try:
        if scheme == "https":
            connection.settimeout(_left(until))
            connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host)
        name = f"[{host}]" if ":" in host else host
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {name}:{port}",
            "User-Agent: cohort-verify",
            "Accept: application/json",
        )
        connection.settimeout(_left(until))
        connection.sendall("\r\n".join((*lines, "Accept-Encoding: identity", "Connection: close", "", "")).encode())
        return _reply(connection, until)
    except ssl.SSLError as error:
        raise NoAnswer(f"no TLS that can be trusted: {error.reason or error}") from None
    except TimeoutError:
        raise NoAnswer("it took too long") from None
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"no whole answer came: {error or type(error).__name__}") from None
    finally:
        connection.close()


def _connected(host: str, port: int, until: float) -> socket.socket:
    """To one of the addresses that the name leads to now, each of which may be called."""
    rows = _within(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), until)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))[:_MOST_ADDRESSES]
    for address in addresses:
        if (kind := non_public(address)) is not None and kind not in NEAR:
            raise NoAnswer(f"{host} is at {address}, which is {kind}: it is not called")
    failure: OSError = OSError("no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=_left(until))
        except OSError as error:
            failure = error
    if isinstance(failure, TimeoutError):
        raise NoAnswer("it cannot be reached: timed out")
    raise NoAnswer(f"it cannot be reached: {failure.strerror or failure}")


def _reply(connection: socket.socket, until: float) -> tuple[int, bytes]:
    """All that comes, read before any of it is parsed, so that a reply that trickles ends with the deadline."""
    content = bytearray()
    while True:
        connection.settimeout(_left(until))
        chunk = connection.recv(_CHUNK)
        if not chunk:
            break
        content += chunk
        if len(content) > MAX_BYTES + _CHUNK:
            raise NoAnswer(f"its answer is larger than {MAX_BYTES:,} bytes")
    response = http.client.HTTPResponse(_Received(bytes(content)))  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


class _Received:
    """What `HTTPResponse` reads of a connection."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._content)


def _within(work: Callable[[], Result], until: float) -> Result:
    """Looking up a name has no deadline of its own: it is left to a thread that nobody waits for after `until`."""
    results: Queue[Result | OSError | UnicodeError] = Queue(1)

    def run() -> None:
        try:
            results.put(work())
        except (OSError, UnicodeError) as error:
            results.put(error)

    Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=_left(until))
    except Empty:
        raise NoAnswer("its name was not looked up in time") from None
    if isinstance(result, (OSError, UnicodeError)):
        raise NoAnswer(f"its name leads nowhere: {getattr(result, 'strerror', None) or result}")
    return result


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise NoAnswer("it took too long")
    return left
