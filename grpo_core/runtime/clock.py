"""Wall time of a step by its phases. Loads no torch.

A thread has one clock running at a time. Code marks its own phase, `with timed("update")`,
and needs no clock passed to it; where none runs that does nothing. A phase inside another takes its time away from it,
so the phases of a step add up to its whole time; what no phase claims is `other`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

OTHER, TOTAL = "other", "total"
_running = threading.local()


class Clock:
    """Wall time by phase since it was made, or since the last `take`."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        """`settle` waits until the device has done what it was given; called where a phase begins and ends."""
        self._settle = settle
        self._phase = OTHER
        self._parts: dict[str, float] = {}
        self._last = time.perf_counter()

    @contextmanager
    def running(self) -> Iterator["Clock"]:
        """Within it `timed` of this thread means this clock. One that ran before gets what this one measured in the
        meantime, phase by phase."""
        outer: Clock | None = getattr(_running, "clock", None)
        if outer is not None:
            outer._lap()
        before = dict(self._parts)
        self._last = time.perf_counter()
        _running.clock = self
        try:
            yield self
        finally:
            self._lap()
            _running.clock = outer
            if outer is not None:
                for name, seconds in self._parts.items():
                    outer._add(outer._phase if name == OTHER else name, seconds - before.get(name, 0.0))
                outer._last = self._last

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done within belongs to this phase, but what a phase inside it claims."""
        self._lap()
        outer, self._phase = self._phase, name
        try:
            yield
        finally:
            self._lap()
            self._phase = outer

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last time, `total` among them, which is their sum; begins anew."""
        self._lap()
        taken, self._parts = self._parts, {}
        return {**taken, TOTAL: sum(taken.values())}

    def _lap(self) -> None:
        """The time since the last one belongs to the current phase."""
        self._settle()
        now = time.perf_counter()
        self._add(self._phase, now - self._last)
        self._last = now

    def _add(self, name: str, seconds: float) -> None:
        self._parts[name] = self._parts.get(name, 0.0) + seconds


def timed(name: str) -> AbstractContextManager[None]:
    """What is done within belongs to this phase of the current step, if this thread has a clock running."""
    clock: Clock | None = getattr(_running, "clock", None)
    return nullcontext() if clock is None else clock.phase(name)
