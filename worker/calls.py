"""HTTP calls that end: with a limit on the time of the whole call and on the size of its answer.

An HTTP client's own limits are for each read and write, so that an answer that trickles would hold its caller for
ever, and the supervisor has one thread, in which it must also beat and obey. A call here is a task of an event loop
that turns only while a caller waits; the caller looks up from that several times a second, and may make other calls.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is no file: several times what a claim of a run with many checkpoints has."""
GLANCE = 0.25
"""Seconds between two looks at what else there is to do."""
_STILL = 20.0
"""Seconds in which a connection must take or give at least a byte, or is given up before the whole call is."""
_CONNECT = 5.0

Result = TypeVar("Result")
Meanwhile = Callable[[], None]
"""Called while something is waited for; what it raises ends the wait."""


class NoAnswer(Exception):
    """No answer, or not all of it. `begun`: bytes of a file had arrived."""

    def __init__(self, why: str, *, begun: bool = False) -> None:
        super().__init__(why)
        self.begun = begun


@dataclass(frozen=True)
class Answer:
    url: httpx.URL
    status: int
    content: bytes
    """Empty when it was a file that was asked for, and came."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Calls:
    """Connections to one platform, for one thread at a time."""

    def __init__(self, url: str) -> None:
        # Another machine's proxy cannot reach this machine's own addresses.
        direct = dict.fromkeys(("http://", "https://")) if _on_this_machine(url) else None
        timeout = httpx.Timeout(_STILL, connect=_CONNECT)
        self._http = httpx.AsyncClient(base_url=f"{url.rstrip('/')}/api/worker/v1/", timeout=timeout, mounts=direct)
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.run_until_complete(self._http.aclose())
        if left := asyncio.all_tasks(self._loop):  # each closes one of the iterators over an answer that was left early
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def post(self, path: str, *, seconds: float, check: float, meanwhile: Meanwhile, **request: Any) -> Answer:
        """`seconds` are for all of it, from connecting to the answer's last byte; `check` of them may pass in silence
        before the answer. Raises NoAnswer."""
        timeout = httpx.Timeout(_STILL, connect=_CONNECT, read=_STILL + check)
        return self._wait(self._post(path, seconds, {**request, "timeout": timeout}), meanwhile)

    def get(
        self,
        path: str,
        *,
        headers: dict[str, str],
        write: Callable[[bytes], None],
        seconds: float,
        meanwhile: Meanwhile,
    ) -> Answer:
        """Hand a file's bytes to `write` as they arrive. `seconds` are from one of its bytes to the next. Raises
        NoAnswer."""
        return self._wait(self._get(path, headers, write, seconds), meanwhile)

    def _wait(self, call: Coroutine[Any, Any, Result], meanwhile: Meanwhile) -> Result:
        task = self._loop.create_task(call)
        try:
            while not self._loop.run_until_complete(asyncio.wait({task}, timeout=GLANCE))[0]:
                meanwhile()
        finally:
            if not task.done():  # the caller was called away: the call ends with the wait
                task.cancel()
                self._loop.run_until_complete(asyncio.wait({task}))
        return task.result()

    async def _post(self, path: str, seconds: float, request: dict[str, Any]) -> Answer:
        try:
            async with asyncio.timeout(seconds), self._http.stream("POST", path, **request) as answer:
                return await _whole(answer)
        except TimeoutError:
            raise NoAnswer(f"the call was not over within {seconds:.0f} s") from None
        except httpx.RequestError as error:
            raise NoAnswer(_why(error)) from None

    async def _get(self, path: str, headers: dict[str, str], write: Callable[[bytes], None], seconds: float) -> Answer:
        begun = False
        try:
            async with asyncio.timeout(seconds) as limit, self._http.stream("GET", path, headers=headers) as answer:
                if not answer.is_success:
                    return await _whole(answer)
                async for chunk in answer.aiter_bytes():
                    write(chunk)
                    begun = True
                    limit.reschedule(self._loop.time() + seconds)
                return Answer(answer.url, answer.status_code, b"")
        except TimeoutError:
            raise NoAnswer(f"nothing came for {seconds:.0f} s", begun=begun) from None
        except httpx.RequestError as error:
            raise NoAnswer(_why(error), begun=begun) from None


async def _whole(answer: httpx.Response) -> Answer:
    content = bytearray()
    async for chunk in answer.aiter_bytes():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise NoAnswer(f"the answer has over {MAX_ANSWER_BYTES:,} bytes; is COHORT_URL the platform's address?")
    return Answer(answer.url, answer.status_code, bytes(content))


def _why(error: httpx.RequestError) -> str:
    """With the system's own words: the client's do not say whether a name is unknown or a connection refused."""
    words, cause = "", error.__context__
    while cause is not None:
        if isinstance(cause, OSError) and str(cause):
            words = f" ({type(cause).__name__}: {cause})"
        one_of = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = one_of or cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {error}{words}"


def _on_this_machine(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
