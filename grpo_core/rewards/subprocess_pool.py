"""Processes that score with rules which a text can make slow, each killed at its deadline and then replaced.

For kinds with mode subprocess. A process is a fresh interpreter with `rewards.subprocess_worker`, never a fork: the
trainer has threads and a device. It is started when first needed and kept, because loading a library takes longer than
most samples. One caller at a time.
"""

import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any, cast

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.rubric import RubricPart
from grpo_core.rewards.scoring import at_fault, failed
from grpo_core.runtime.watchdog import doing

PROGRAM = ("-P", "-m", "grpo_core.rewards.subprocess_worker")
START_SECONDS = 120.0
"""Longest that loading a rule's libraries may take, on a machine that is busy."""
LENGTH = struct.Struct(">I")
"""Of a frame, before it."""
_TICK = 0.1
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that the processes are given. They need no keys or tokens."""


class Pool:
    """At most `workers` processes, all for the same kinds."""

    def __init__(
        self, kinds: Sequence[str], *, workers: int, deadline: float, program: Sequence[str] = PROGRAM
    ) -> None:
        self._words = [sys.executable, *program, json.dumps(sorted(set(kinds)))]
        self._workers = workers
        self._deadline = deadline
        self._children: list[_Child] = []

    def score(
        self, part: RubricPart, samples: Sequence[ScoreRequest], check: Callable[[], None]
    ) -> list[ComponentScore]:
        """The part's score of each, in order. What `check` raises stops the pending work and propagates."""
        scores: dict[int, ComponentScore] = {}
        waiting = deque(range(len(samples)))
        try:
            while len(scores) < len(samples):
                check()
                doing(f"reward {part.component.name}", f"{len(scores)} of {len(samples)} samples scored")
                self._assign(part, samples, waiting)
                self._collect(part, samples, scores)
        finally:
            for child in [worker for worker in self._children if worker.index is not None]:
                self._end(child)
        return [scores[index] for index in range(len(samples))]

    def close(self) -> None:
        for child in list(self._children):
            self._end(child)

    def processes(self) -> list[int]:
        """Ids of those that live."""
        return [child.process.pid for child in self._children]

    # ------------------------------------------------------------------ one round

    def _assign(self, part: RubricPart, samples: Sequence[ScoreRequest], waiting: deque[int]) -> None:
        """A sample for every process that is free, and for as many new processes as there may be."""
        free = [child for child in self._children if child.index is None]
        while waiting and (free or len(self._children) < self._workers):
            if free:
                child = free.pop()
            else:
                child = _Child(self._words)
                self._children.append(child)
            child.index = waiting.popleft()
            if child.ready:
                child.send(part, samples, self._deadline)

    def _collect(self, part: RubricPart, samples: Sequence[ScoreRequest], scores: dict[int, ComponentScore]) -> None:
        """Wait for the next replies, the next deadline, or one tick."""
        busy = [child for child in self._children if child.index is not None]
        with selectors.DefaultSelector() as selector:
            for child in busy:
                selector.register(child.replies, selectors.EVENT_READ, child)
            wait = min(child.until for child in busy) - time.monotonic()
            readable = {cast("_Child", key.data) for key, _ in selector.select(max(0.0, min(wait, _TICK)))}
        for child in busy:
            index = cast("int", child.index)
            reply = child.receive() if child in readable else None
            if reply is not None and not child.ready:
                child.ready = True
                child.send(part, samples, self._deadline)
            elif reply is not None:
                scores[index] = ComponentScore.model_validate(reply).model_copy(update={"seconds": child.seconds()})
                child.index = None
            elif child.ended:
                self._end(child)
                scores[index] = _died(child)
            elif time.monotonic() >= child.until:
                self._end(child)
                scores[index] = _late(child, self._deadline)

    def _end(self, child: "_Child") -> None:
        self._children.remove(child)
        child.kill()


class _Child:
    """One process, and the sample that it has at present."""

    def __init__(self, words: Sequence[str]) -> None:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.replies = cast("IO[bytes]", self.process.stdout)
        os.set_blocking(self.replies.fileno(), False)
        self.ready = False
        self.ended = False
        self.index: int | None = None
        self.began = time.monotonic()
        self.until = self.began + START_SECONDS
        self._held = bytearray()

    def send(self, part: RubricPart, samples: Sequence[ScoreRequest], deadline: float) -> None:
        sample = samples[cast("int", self.index)]
        request = {
            "kind": part.component.kind,
            "params": part.component.params,
            "sample": asdict(sample),
            "alarm": 2 * deadline + 10,
        }
        body = json.dumps(request).encode()
        self.began = time.monotonic()
        self.until = self.began + deadline
        try:
            self.process.stdin.write(LENGTH.pack(len(body)) + body)  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            self.ended = True

    def receive(self) -> Any:
        """A whole reply; None while it is not all there, or when the process ended."""
        while True:
            try:
                more = os.read(self.replies.fileno(), 65536)
            except BlockingIOError:
                break
            if not more:
                self.ended = True
                break
            self._held += more
        if len(self._held) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack(self._held[: LENGTH.size])
        if len(self._held) < LENGTH.size + length:
            return None
        body = bytes(self._held[LENGTH.size : LENGTH.size + length])
        del self._held[: LENGTH.size + length]
        return json.loads(body)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # it may hold a request that nobody reads any more
                pipe.close()  # type: ignore[union-attr]


def _died(child: _Child) -> ComponentScore:
    """A process that ended without our doing. That somebody killed it, or that it could not begin, says nothing of the
    sample; that it crashed does."""
    status = child.process.returncode
    seconds = child.seconds()
    if not child.ready:
        message = f"the process that scores ended with status {status} before it was ready; what it said is in the log"
        return failed("infra", message, seconds=seconds)
    if status == -signal.SIGKILL:
        return failed("infra", "the process that scores was killed, perhaps for want of memory", seconds=seconds)
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    return at_fault("verifier", f"the process that scores it ended by itself ({name})", seconds=seconds)


def _late(child: _Child, deadline: float) -> ComponentScore:
    if not child.ready:
        message = f"the process that scores was not ready within {START_SECONDS:g} s"
        return failed("infra", message, seconds=child.seconds())
    return at_fault("timeout", f"took over {deadline:g} s and was killed", seconds=child.seconds())
