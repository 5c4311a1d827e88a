"""Samples the next step's groups in a separate thread while the policy learns from this step's (engine.one_step_off).

Only the trainer's thread decides when a run stops. Were both to check, the sampling could end by itself, and the
trainer would notice only once weights had moved, when no checkpoint can be cut of the step before. So a stop reaches
the sampling when the trainer closes it; and its errors reach the trainer, unchanged, when it waits for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import nullcontext

import torch

from grpo_core.errors import Interrupted
from grpo_core.runtime import watchdog

TICK = 0.1
"""Seconds between two checks for a stop while the trainer waits."""


class RolloutPrefetcher:
    """One thread for one piece of work at a time. It lives as long as the run, because processes that work starts may
    be bound to the thread that started them."""

    def __init__(self, check: Callable[[], None], device: torch.device) -> None:
        """`check` may raise to stop; it is called in the trainer's thread only."""
        self._check = check
        self._device = device
        self._stream: torch.cuda.Stream | None = (
            torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        )
        self._leaving = threading.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="ahead", initializer=self._enter)
        self._inside: int | None = None
        self._work: Future[None] | None = None

    def check(self) -> None:
        """For everything that both threads call: raises Interrupted in this thread once the trainer leaves, and in the
        trainer's what its own check raises."""
        if threading.get_ident() != self._inside:
            self._check()
        elif self._leaving.is_set():
            raise Interrupted("the trainer leaves")

    def begin(self, work: Callable[[], None]) -> None:
        """Start it. What came before must have been waited for."""
        assert self._work is None
        if self._stream is not None:  # it sees the weights that were written before this
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._work = self._threads.submit(self._run, work)

    def wait(self) -> None:
        """Until the work is done, if there is any. Raises what it raised, and what the trainer's check raises."""
        if self._work is None:
            return
        with watchdog.waiting("waiting for the next step's groups"):
            while not wait_for([self._work], timeout=TICK).done:
                self._check()
        work, self._work = self._work, None
        work.result()

    def close(self) -> None:
        """End the work under way, at its next check, and the thread; may be called twice. What it then raises is
        ignored: the trainer leaves for another reason."""
        self._leaving.set()
        self._threads.shutdown()

    def _enter(self) -> None:
        self._inside = threading.get_ident()

    def _run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            work()
