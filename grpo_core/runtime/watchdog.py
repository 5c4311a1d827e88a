"""Reports what a run waits for when nothing moves. It ends nothing and changes nothing.

Code marks what it is about to do, `doing("sampling", "37 of 64 completions ended")`, and needs no object for it; where
no watchdog runs that does nothing. A text or a number that differs from the one before is movement.
Loads no torch.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, Self

from grpo_core.text import format_duration

_STACK = 12
"""Innermost frames of a thread that the log shows."""
_BEAT = 5.0
"""Most seconds between two reports of a rank to the others."""


class RankStatus(Protocol):
    """What each rank is doing, apart from what ranks exchange in training."""

    def publish(self, status: dict[str, Any]) -> None: ...

    def read(self) -> dict[str, dict[str, Any] | None]:
        """The newest status of each other rank, by its name; None of one that has published none yet."""


@dataclass
class _Doing:
    """The activity of a thread."""

    what: str
    detail: str
    scope: str
    count: int

    def words(self) -> str:
        where = f"{self.what}, {self.scope}" if self.scope else self.what
        return f"{where}: {self.detail}" if self.detail else where


@dataclass(eq=False)
class Watchdog:
    """Watches the threads of this process that mark what they are doing."""

    seconds: float
    """Without movement, after which it warns, then each time twice as long has passed; 0 never."""
    _: KW_ONLY
    warn: Callable[[str, dict[str, Any]], None]
    """Given a sentence and its data, in the watchdog's own thread."""
    log: Callable[[str], None]
    """Given the stacks, in the same thread."""
    status: RankStatus | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, _Doing] = {}
        self._moves = 0
        self._moved_at = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._others: dict[str, tuple[int, float]] = {}
        """Number of a rank's newest status, and when it came here."""
        self._beats = 0

    def __enter__(self) -> Self:
        global _on
        if self.seconds > 0:
            _on = self
            if self.status is not None:  # at once: this rank may hang before the watch first looks
                self._beat(self.status, quiet=0.0)
            self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _on
        if self._thread is not None:
            _on = None
            self._over.set()
            self._thread.join()

    # ------------------------------------------------------------------ called by working threads

    def set(self, what: str, detail: str, count: int, scope: str | None) -> _Doing | None:
        """What this thread does from now on; returns what it did before. `scope` None: unchanged."""
        own = threading.get_ident()
        with self._lock:
            before = self._threads.get(own)
            if scope is None:
                scope = before.scope if before is not None else ""
            now = _Doing(what, detail, scope, count)
            if now != before:
                self._threads[own] = now
                self._moves += 1
                self._moved_at = time.monotonic()
        return before

    def rest(self) -> None:
        """This thread has nothing to do."""
        with self._lock:
            self._threads.pop(threading.get_ident(), None)
            self._moves += 1
            self._moved_at = time.monotonic()

    # ------------------------------------------------------------------ the watch

    def _watch(self) -> None:
        pause = min(1.0, self.seconds / 4)
        due, warned, words, beat_at, since = self.seconds, -1, "", time.monotonic(), 0.0
        while not self._over.wait(pause):
            with self._lock:
                moves, moved_at = self._moves, self._moved_at
            now = time.monotonic()
            if self.status is not None and now - beat_at >= min(_BEAT, self.seconds / 4):
                beat_at = now
                self._beat(self.status, now - moved_at)
            if warned >= 0 and moves != warned:
                data = {"doing": words, "over": True}
                self.warn(f"resumed after {format_duration(moved_at - since)}: {words}", data)
                due, warned = self.seconds, -1
            quiet = now - moved_at
            if quiet >= due:
                words, since = self._words(), moved_at
                data = {"doing": words, "seconds": round(quiet, 1), "over": False}
                self.log(self._stacks())
                self.warn(f"nothing has moved for {format_duration(quiet)}: {words}{self._of_others()}", data)
                due, warned = 2 * due, moves

    def _words(self) -> str:
        with self._lock:
            return "; also ".join(thread.words() for thread in self._threads.values()) or "starting"

    def _stacks(self) -> str:
        with self._lock:
            threads: list[int | None] = list(self._threads)
        frames = sys._current_frames()
        stacks = [
            "".join(traceback.format_stack(frames[thread])[-_STACK:])
            for thread in threads or [threading.main_thread().ident]
            if thread is not None and thread in frames
        ]
        return "stacks:\n" + "also:\n".join(stacks).rstrip()

    # ------------------------------------------------------------------ several ranks

    def _beat(self, status: RankStatus, quiet: float) -> None:
        self._beats += 1
        status.publish({"beat": self._beats, "doing": self._words(), "quiet": quiet})
        now = time.monotonic()
        for name, beat in status.read().items():
            if beat is not None and self._others.get(name, (0, 0.0))[0] != beat["beat"]:
                self._others[name] = (beat["beat"], now)

    def _of_others(self) -> str:
        if self.status is None:
            return ""
        now, parts = time.monotonic(), []
        for name, beat in sorted(self.status.read().items()):
            if beat is None:
                parts.append(f"{name} has published no status yet")
                continue
            silent = now - self._others.get(name, (0, now))[1]
            if silent > 3 * min(_BEAT, self.seconds / 4) + 1:
                parts.append(f"{name} has published no status for {format_duration(silent)}, its last: {beat['doing']}")
            else:
                parts.append(f"{name}, still for {format_duration(beat['quiet'])}: {beat['doing']}")
        return "".join(f"; {part}" for part in parts)


_on: Watchdog | None = None


def doing(what: str, detail: str = "", count: int = 0) -> None:
    """This thread does this from now on. `count` is any number that differs where something was done meanwhile."""
    if _on is not None:
        _on.set(what, detail, count, None)


def at(scope: str, what: str) -> None:
    """The same; what comes after is in this scope too, such as `step 12`."""
    if _on is not None:
        _on.set(what, "", 0, scope)


def rest() -> None:
    """This thread has nothing to do, and nobody waits for it."""
    if _on is not None:
        _on.rest()


@contextmanager
def waiting(what: str, detail: str = "") -> Iterator[None]:
    """Within it this thread waits for something; afterwards its activity is the one before."""
    watchdog = _on
    if watchdog is None:
        yield
        return
    before = watchdog.set(what, detail, 0, None)
    try:
        yield
    finally:
        if before is None:
            watchdog.rest()
        else:
            watchdog.set(before.what, before.detail, before.count, before.scope)
