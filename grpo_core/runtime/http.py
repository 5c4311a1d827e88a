"""HTTP calls with a deadline for the whole call, a cap on the reply and an address that is looked up once. No torch.

An HTTP library limits each read and write by itself, so a reply that trickles would hold its caller for ever. A call
here is a task of an event loop that turns only while its caller waits; several times a second the caller's check runs,
may make other calls, and ends the call by raising.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal, TypeVar

import httpx

from grpo_core.runtime.addresses import non_public

CHECK_SECONDS = 0.25
"""Between two checks."""
_CONNECT_SECONDS = 10.0
_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")

for _name in ("httpx", "httpcore"):  # a line for each call would drown the rest
    logging.getLogger(_name).setLevel(logging.WARNING)

Result = TypeVar("Result")
Cause = Literal["private", "unreachable", "tls", "timeout", "broken", "compressed", "too_large"]


class HttpError(Exception):
    """No reply, or not all of it."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Reply:
    url: str
    status: int
    headers: Mapping[str, str]
    """Found by name in any case."""
    body: bytes
    """Empty where it was handed to `write`."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class HttpClient:
    """Calls of one thread at a time, without redirects, cookies and compression.

    `proxies`: for an address that this machine's operator gave; the environment's proxies are used (not for loopback
    addresses), and connections are kept open. Without, no proxy is used, and each call goes over a separate
    connection to an address that was checked: where it is not on the public internet, it is refused unless `private`.
    """

    def __init__(self, base_url: str = "", *, proxies: bool = False, private: bool = False) -> None:
        self._proxies = proxies
        self._private = private
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Accept-Encoding": "identity", "User-Agent": "cohort"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            verify=ssl.create_default_context(),
            trust_env=proxies,
            mounts=dict.fromkeys(_LOOPBACK),
            limits=httpx.Limits(max_keepalive_connections=None if proxies else 0),
        )
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        """May be called twice."""
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(self._http.aclose())
        if left := asyncio.all_tasks(self._loop):  # each closes the iterator over a reply that was left early
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def call(self, method: str, url: str, *, check: Callable[[], None] = lambda: None, **request: Any) -> Reply:
        """`request`, for a caller outside the event loop."""
        return self.run(self.request(method, url, **request), check)

    def run(self, work: Coroutine[Any, Any, Result], check: Callable[[], None] = lambda: None) -> Result:
        """Turn the event loop until `work` is over. What `check` raises ends it, with all calls that it makes."""
        task = self._loop.create_task(work)
        try:
            while not self._loop.run_until_complete(asyncio.wait({task}, timeout=CHECK_SECONDS))[0]:
                check()
        finally:
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.wait({task}))
        return task.result()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        max_bytes: int,
        seconds: float | None = None,
        idle: float | None = None,
        write: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """`seconds` are for all of it, from looking up the name to the reply's last byte; `idle` of them may pass
        without a byte in either direction. The body of a reply with status 2xx is handed to `write` as it arrives,
        without a limit on its size; any other has at most `max_bytes`. Raises HttpError."""
        timeout = httpx.Timeout(idle, connect=_CONNECT_SECONDS, pool=None)
        try:
            made = self._http.build_request(method, url, headers=headers, content=body, timeout=timeout)
            async with asyncio.timeout(seconds):
                return await (self._send if self._proxies else self._send_pinned)(made, max_bytes, write)
        except httpx.InvalidURL as error:
            raise HttpError("unreachable", f"{url[:200]!r} is no web address: {error}") from None
        except TimeoutError:
            raise HttpError("timeout", f"timed out: the call was not over within {seconds:g} s") from None
        except (httpx.ReadTimeout, httpx.WriteTimeout):
            raise HttpError("timeout", f"timed out: nothing came for {idle:g} s") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            host = made.headers["Host"]
            if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
                raise HttpError("tls", f"no TLS with {host} that can be trusted: {error}") from None
            raise HttpError("unreachable", f"{host} cannot be reached: {_describe(error)}") from None
        except (httpx.RequestError, ssl.SSLError) as error:
            raise HttpError("broken", f"no whole HTTP reply came: {_describe(error)}") from None

    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses of the host. Raises HttpError, and for one that may not be called with the cause `private`."""
        try:
            rows = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise HttpError("unreachable", f"the name {host} leads nowhere: {why}") from None
        addresses = [str(row[4][0]) for row in rows]
        for address in addresses:
            if not self._private and (kind := non_public(address)) is not None:
                raise HttpError("private", f"{host} is at {address}, an address that is {kind}")
        return addresses

    async def _send_pinned(self, made: httpx.Request, max_bytes: int, write: Callable[[bytes], None] | None) -> Reply:
        """To the addresses that `resolve` checked, in turn until one is reached: never to the name, which may lead
        elsewhere at the next look-up."""
        url = made.url
        host = url.raw_host.decode()
        failure: httpx.TransportError = httpx.ConnectError("no address")
        made.extensions["sni_hostname"] = host
        for address in await self.resolve(host, url.port or {"http": 80, "https": 443}[url.scheme]):
            made.url = url.copy_with(host=address)
            try:
                return replace(await self._send(made, max_bytes, write), url=str(url))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _send(self, made: httpx.Request, max_bytes: int, write: Callable[[bytes], None] | None) -> Reply:
        response = await self._http.send(made, stream=True)
        try:
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.strip().lower() not in ("", "identity"):
                why = f"the reply is compressed ({packed}), which was not requested; it is not unpacked"
                raise HttpError("compressed", why)
            body = bytearray()
            async for chunk in response.aiter_raw():
                if write is not None and response.is_success:
                    write(chunk)
                    continue
                body += chunk
                if len(body) > max_bytes:
                    raise HttpError("too_large", f"the reply has over {max_bytes:,} bytes")
        finally:
            await response.aclose()
        return Reply(str(response.url), response.status_code, response.headers, bytes(body))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it; of a group the first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        first = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = first or cause.__cause__ or cause.__context__


def _describe(error: Exception) -> str:
    """With the system's words: the library's do not say whether a name is unknown or a connection refused."""
    system = [cause for cause in _causes(error) if isinstance(cause, OSError) and str(cause)]
    words = f" ({type(system[-1]).__name__}: {system[-1]})" if system else ""
    return f"{type(error).__name__}: {error}{words}"
