"""Asks a judge's server, as a program of its own that is killed at a deadline: looking up a name, connecting, TLS,
headers and body each wait by themselves, and a server that sends a byte at a time ends none of these waits.

Reads one request as a line of JSON from standard input, does it, answers with a line of JSON, and waits for the next;
ends with its input. A name is looked up once, and connected is to the address that was checked. It follows no
redirect, uses no proxy and unpacks nothing. Needs Python alone, so that it starts in milliseconds (`python -I -S`).

Request: scheme, host, port, path, private (whether the worker's operator allows any address), key, body, seconds.
Answer: status, type, retry_after, location, body, promised; or trouble and message.
"""

import http.client
import ipaddress
import json
import signal
import socket
import ssl
import sys
from functools import cache
from typing import Any

MOST_BYTES = 1024 * 1024
"""More of an answer is not read."""
_USER_AGENT = "cohort"
_REFUSED = [
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "of this machine"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
        ("127.0.0.0/8", "of this machine (loopback)"),
        ("168.63.129.16/32", "a cloud's own service"),
        ("169.254.0.0/16", "link-local (a cloud's metadata)"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::1/128", "of this machine (loopback)"),
        ("fe80::/10", "link-local"),
        ("fc00::/7", "private"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved"),
        ("2002::/16", "reserved"),
        ("3fff::/20", "reserved"),
    )
]
_PUBLIC_6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Trouble(Exception):
    """The server gave no HTTP answer that can be used. `kind` is a stable word."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def address_fault(address: str) -> str | None:
    """Why an address is none of the public internet, in a word or two; None when it is one."""
    found: Any = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6:
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    for network, what in _REFUSED:
        if found.version == network.version and found in network:
            return what
    return "reserved" if found.version == 6 and found not in _PUBLIC_6 else None


def exchange(request: dict[str, Any]) -> dict[str, Any]:
    """The server's answer. Raises Trouble."""
    host, port, secure = request["host"], request["port"], request["scheme"] == "https"
    line = _connected(host, port, private=request["private"], seconds=request["seconds"])
    with line:
        connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(host, port)
        try:
            connection.sock = _tls().wrap_socket(line, server_hostname=host) if secure else line
        except ssl.SSLError as error:
            raise Trouble("tls", f"no TLS that can be trusted: {error.reason or error}") from None
        except OSError as error:
            raise Trouble("tls", f"the connection ended during TLS: {error}") from None
        try:
            return _asked(connection, request)
        except http.client.IncompleteRead as error:
            raise Trouble("cut", f"the answer ended in the middle of a part of its body ({error})") from None
        except (http.client.HTTPException, ValueError) as error:
            raise Trouble("protocol", f"the answer is no HTTP: {type(error).__name__}: {error}") from None
        except TimeoutError:  # most often the pool's own deadline is quicker, and says the same
            raise Trouble("timeout", f"timed out: no whole answer within {request['seconds']:g} s") from None
        except OSError as error:
            raise Trouble("broken", f"the connection broke: {error.strerror or error}") from None
        finally:
            connection.close()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _asked(connection: http.client.HTTPConnection, request: dict[str, Any]) -> dict[str, Any]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": _USER_AGENT,
        "Connection": "close",  # what a server sends beyond its length must never be taken for the next answer
    }
    if request["key"] is not None:
        headers["Authorization"] = f"Bearer {request['key']}"
    connection.request("POST", request["path"], body=request["body"].encode(), headers=headers)
    reply = connection.getresponse()
    packed = reply.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise Trouble("packed", f"the answer is compressed ({packed}), which was not asked for; it is not unpacked")
    promised = reply.length
    if promised is not None and promised > MOST_BYTES:
        raise Trouble("too_long", f"the answer says it has {promised:,} bytes; at most {MOST_BYTES:,} are read")
    body = bytearray()
    while part := reply.read(65536):
        body += part
        if len(body) > MOST_BYTES:
            raise Trouble("too_long", f"the answer has no end: more than {MOST_BYTES:,} bytes came")
    if promised is not None and len(body) < promised:
        raise Trouble(
            "cut", f"the answer lies about its length: Content-Length says {promised:,} bytes, {len(body):,} came"
        )
    return {
        "status": reply.status,
        "type": reply.headers.get_content_type(),
        "retry_after": reply.headers.get("Retry-After", ""),
        "location": reply.headers.get("Location", ""),
        "body": body.decode("utf-8", errors="replace"),
        "promised": promised,
    }


def resolved(host: str, port: int, *, private: bool) -> list[Any]:
    """What `socket.getaddrinfo` says of the host, checked. Raises Trouble."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Trouble(
            "unresolved", f"the name {host} leads nowhere: {getattr(error, 'strerror', None) or error}"
        ) from None
    for *_, address in found:
        fault = address_fault(str(address[0]))
        if fault is not None and not private:
            raise Trouble("private", f"{host} is at {address[0]}, an address that is {fault}")
    return found


def _connected(host: str, port: int, *, private: bool, seconds: float) -> socket.socket:
    addresses = resolved(host, port, private=private)
    why = "no address"
    for family, kind, protocol, _, address in addresses:
        line = socket.socket(family, kind, protocol)
        line.settimeout(seconds / len(addresses))
        try:
            line.connect(address)
        except OSError as error:
            why = error.strerror or str(error)
            line.close()
        else:
            line.settimeout(seconds)
            return line
    raise Trouble("unreachable", f"{host}:{port} cannot be reached: {why}")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C comes to the whole group; our parent ends us
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 5)  # SIGALRM ends us when nobody is left to kill us
        try:
            told = exchange(request) if request["body"] is not None else _looked_up(request)
        except Trouble as trouble:
            told = {"trouble": trouble.kind, "message": str(trouble)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _looked_up(request: dict[str, Any]) -> dict[str, Any]:
    """Of a request without a body: where the host is, and nothing is sent."""
    found = resolved(request["host"], request["port"], private=request["private"])
    return {"addresses": sorted({str(address[0]) for *_, address in found})}


if __name__ == "__main__":
    main()
