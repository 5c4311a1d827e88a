"""Asks a judge many things side by side: retries with growing pauses and as the server asks, within a budget.

Trouble of the server is tried again and then told; nothing here decides what a completion earns.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.rewards.judge.pool import Pool
from grpo_core.rewards.judge.store import Store
from grpo_core.rewards.judge.where import Where, private_message
from grpo_core.rewards.judge.words import Answer, Failed, Hidden, told
from grpo_core.runtime.watchdog import doing

FIRST_PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""
LONGEST_PAUSE = 60.0
"""A server that asks for more is not waited for."""
_LOOK = 0.2
"""Seconds between two looks at whether the run is to stop."""


@dataclass(frozen=True)
class Request:
    digest: str
    body: str


@dataclass(frozen=True)
class Outcome:
    """What came of a request."""

    found: Answer | Failed
    seconds: float = 0.0
    """Of all tries, without the pauses."""
    tries: int = 1


@dataclass(frozen=True)
class _Waiting:
    ready: float
    request: Request
    tries: int = 0
    seconds: float = 0.0


class Calls:
    """Owns the processes that ask one judge, what it said, and what that cost."""

    def __init__(
        self,
        judge: Where,
        store: Store,
        *,
        key: str | None,
        private: bool,
        seconds: float,
        retries: int,
        workers: int,
        most_calls: int | None,
        most_tokens: int | None,
    ) -> None:
        self._judge = judge
        self._store = store
        self._key = key
        self._hide = Hidden(key)
        self._private = private
        self._seconds = seconds
        self._retries = retries
        self._pool = Pool(workers)
        self._most_calls = most_calls
        self._most_tokens = most_tokens
        self._held_until = 0.0

    def close(self) -> None:
        self._pool.close()

    def look_up(self) -> dict[str, Any]:
        """Where the judge is, before anything is asked: `addresses`, or the `trouble` with that."""
        self._pool.ask("look", self._plain(None))
        while True:
            for _, reply, _ in self._pool.wait(self._seconds):
                return reply

    def answer(self, requests: Sequence[Request], check: Callable[[], None]) -> dict[str, Outcome]:
        """What came of each, by its digest. `check` may raise to stop; then nothing is left running."""
        done: dict[str, Outcome] = {}
        waiting: list[_Waiting] = []
        distinct = {request.digest: request for request in requests}
        self._store.usage.cache_hits += len(requests) - len(distinct)
        for request in distinct.values():
            kept = self._store.find(request.digest)
            if kept is not None:
                done[request.digest] = Outcome(kept)
            else:
                waiting.append(_Waiting(0.0, request))
        at_work: dict[str, _Waiting] = {}
        try:
            while waiting or at_work:
                check()
                doing(
                    f"waiting for the judge at {self._judge.place}", f"{len(done)} of {len(distinct)} answers are there"
                )
                waiting = self._begin(waiting, at_work, done)
                for digest, reply, seconds in self._pool.wait(self._patience(waiting)):
                    tried = at_work.pop(digest)
                    tried = replace(tried, tries=tried.tries + 1, seconds=tried.seconds + seconds)
                    later = self._end(tried, reply, done)
                    waiting += [later] if later is not None else []
        finally:
            self._pool.abandon()
        return done

    def _begin(self, waiting: list[_Waiting], at_work: dict[str, _Waiting], done: dict[str, Outcome]) -> list[_Waiting]:
        """Give free processes what may be asked now; returns what still waits."""
        now, left = time.monotonic(), []
        for one in waiting:
            spent = self._spent()
            if spent is not None:
                done[one.request.digest] = Outcome(Failed(spent, "budget"), one.seconds, max(1, one.tries))
            elif self._pool.free and now >= max(one.ready, self._held_until):
                self._store.usage.calls += 1
                self._store.usage.retried += one.tries > 0
                at_work[one.request.digest] = one
                self._pool.ask(one.request.digest, self._plain(one.request.body))
            else:
                left.append(one)
        return left

    def _end(self, tried: _Waiting, reply: dict[str, Any], done: dict[str, Outcome]) -> _Waiting | None:
        """Keep what came of a try, or say when the next one may begin."""
        found = told(reply, self._hide)
        if reply.get("trouble") == "private":
            found = Failed(private_message(self._judge, reply["message"]))
        if isinstance(found, Answer):
            self._store.add(tried.request.digest, found, asked=tried.request.body, tries=tried.tries)
        elif found.again and tried.tries <= self._retries:
            pause = FIRST_PAUSE * 2 ** (tried.tries - 1) if found.wait is None else found.wait
            if pause <= LONGEST_PAUSE:
                ready = time.monotonic() + pause
                if found.wait is not None:
                    self._held_until = max(self._held_until, ready)  # it means all of us
                return replace(tried, ready=ready)
            found = replace(found, error=f"{found.error}; it asks to wait {pause:,.0f} s, over {LONGEST_PAUSE:g} s")
        if isinstance(found, Failed):
            self._store.usage.failed += 1
            self._store.usage.refusals += found.error_class == "refused"
        done[tried.request.digest] = Outcome(found, tried.seconds, tried.tries)
        return None

    def _patience(self, waiting: Sequence[_Waiting]) -> float:
        now = time.monotonic()
        soonest = min((max(one.ready, self._held_until) - now for one in waiting), default=_LOOK)
        return _LOOK if self._pool.free == 0 else min(_LOOK, max(0.0, soonest))

    def _spent(self) -> str | None:
        usage = self._store.usage
        if self._most_calls is not None and usage.calls >= self._most_calls:
            return f"the judge's budget is spent: {usage.calls:,} calls of {self._most_calls:,} (budget_calls)"
        if self._most_tokens is not None and usage.tokens >= self._most_tokens:
            return f"the judge's budget is spent: {usage.tokens:,} tokens of {self._most_tokens:,} (budget_tokens)"
        return None

    def _plain(self, body: str | None) -> dict[str, Any]:
        judge = self._judge
        return {
            "scheme": judge.scheme,
            "host": judge.host,
            "port": judge.port,
            "path": judge.path,
            "private": self._private,
            "key": self._key if body is not None else None,
            "body": body,
            "seconds": self._seconds,
        }
