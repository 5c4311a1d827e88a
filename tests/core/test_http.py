"""Calls over HTTP: to the address that was checked and no other, and over at their deadline whatever they wait for."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from grpo_core.runtime.addresses import non_public
from grpo_core.runtime.http import HttpClient, HttpError, Reply
from tests.tables import cases

from .rewards.judge_server import Server, http, let_pass, says


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with closing(HttpClient(private=True)) as made:
        yield made


def post(client: HttpClient, url: str, *, seconds: float = 100.0) -> Reply:
    return client.call("POST", url, headers={}, body=b"{}", seconds=seconds, max_bytes=10_000)


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Every name leads to the first of these at its first look-up, then to the next; returns the names."""
    names: list[str] = []

    def getaddrinfo(name: str, port: int, *_: object, **__: object) -> list[object]:
        names.append(name)
        found = addresses[min(len(names), len(addresses)) - 1].split()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


@pytest.mark.parametrize(("address", "private"), cases("judge/addresses", "address", "private"))
def test_tells_public_from_private_addresses(address: str, private: bool) -> None:
    assert bool(non_public(address)) is private


def test_the_address_that_is_called_is_the_one_that_was_checked(
    monkeypatch: pytest.MonkeyPatch, client: HttpClient
) -> None:
    """A name that leads elsewhere at each look-up is looked up once."""
    with Server(lambda _: says("")) as server:
        port = server.address.partition(":")[2]
        names = named(monkeypatch, "127.0.0.1", "10.9.9.9")
        reply = post(client, f"http://judge.example:{port}/v1")
        assert (reply.status, reply.url) == (200, f"http://judge.example:{port}/v1")
        assert names == ["judge.example"]
        assert server.seen[0].headers["host"] == f"judge.example:{port}"


@pytest.mark.parametrize("address", ["127.0.0.1", "8.8.8.8 127.0.0.1", "::ffff:127.0.0.1"])
def test_nothing_is_sent_to_a_private_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Even where another address of the name is public."""
    with Server(lambda _: says("")) as server, closing(HttpClient()) as client:
        named(monkeypatch, address)
        with pytest.raises(HttpError, match="of this machine") as error:
            post(client, f"http://judge.example:{server.address.partition(':')[2]}/v1")
        assert (error.value.cause, server.seen) == ("private", [])


def test_a_further_address_is_called_where_the_first_is_not_there(
    monkeypatch: pytest.MonkeyPatch, client: HttpClient
) -> None:
    with Server(lambda _: says("")) as server:
        named(monkeypatch, "127.9.9.9 127.0.0.1")
        assert post(client, f"http://judge.example:{server.address.partition(':')[2]}/v1").status == 200


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_no_proxy_sees_a_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with Server(lambda _: says("")) as proxy, Server(lambda _: http("204 No Content", b"")) as server:
        monkeypatch.setenv(name, f"http://{proxy.address}")
        with closing(HttpClient(private=True)) as client:
            assert post(client, f"http://{server.address}/v1").status == 204
        assert proxy.seen == []


def test_no_cookie_is_kept(client: HttpClient) -> None:
    with Server(lambda _: http("204 No Content", b"", "Set-Cookie: a=b; Path=/")) as server:
        for _ in range(2):
            assert post(client, f"http://{server.address}/v1").headers["set-cookie"]
        assert not any("cookie" in seen.headers for seen in server.seen)


def test_a_look_up_that_hangs_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch, client: HttpClient) -> None:
    over = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        let_pass(client, 100.0)
        over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(HttpError, match="not over within 100 s") as error:
        post(client, "http://judge.example/v1")
    over.set()
    assert error.value.cause == "timeout"


@pytest.mark.parametrize("host", ["wit ness.example", "[::1", "x:99999", f"{'a' * 70}.x"])
@pytest.mark.parametrize("proxies", [True, False])
def test_what_is_no_address_is_an_error_of_the_call(host: str, proxies: bool) -> None:
    with closing(HttpClient(proxies=proxies)) as client, pytest.raises(HttpError):
        post(client, f"http://{host}/")
