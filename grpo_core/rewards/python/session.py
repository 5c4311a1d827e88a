"""Boxes that are held open to answer many requests, several in parallel, each killed at its deadline and replaced.

For kinds with mode sandbox that score with code that a person wrote: `python`, `reasoning_gym`. Loading such
code takes longer than most samples, so a box stays open from one request to the next. It must not be used for code that
a model wrote: what one completion does could affect the next one.

A kind gives the source text of a program that runs inside and defines two functions:

    load(hello: dict) -> None        once per box; what it raises keeps the run from starting
    answer(request: dict) -> dict    for each request; gives JSON values

Inside there is also `Trouble(kind, message)` to raise: an error whose class (`value`, `sample`, `verifier` …) the
program knows itself. Anything else that is raised is an error of class `verifier`, MemoryError of class `memory`.
Outside:

    sessions = Sessions(program, hello={…}, packages=("numpy",), files=("verifier.py",), memory_mb=512, workers=4,
                        call_seconds=30.0)
    sessions.open()                              # one box, loaded; RewardError with the traceback where it fails
    answers = sessions.submit(requests, check)      # one Answer each, in order; never raises for a request
    sessions.facts()                             # for the manifest: packages, level of the sandbox, limits
    sessions.close()

`Answer.score(convert)` makes a ComponentScore of it: `convert(reply)` is called where there is a reply.
`shared_sandbox()` is the one sandbox of this process; callers that need boxes of another form use it too.
"""

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, suppress
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import JsonValue

from grpo_core.config.reward import RewardLimits
from grpo_core.errors import ConfigError, RewardError, SandboxError
from grpo_core.rewards.python.session_slot import OUTPUT_BYTES, TICK, Answer, Slot, Terms, below
from grpo_core.runtime.watchdog import doing
from grpo_core.sandbox import Limits, Sandbox, find_sandbox


@cache
def shared_sandbox() -> Sandbox:
    """The sandbox of this process, found and tested once. Raises SandboxError with the fix where there is none."""
    return find_sandbox()


class Sessions:
    """At most `workers` boxes of one program. One caller at a time."""

    def __init__(
        self,
        program: str,
        reward_limits: RewardLimits,
        *,
        hello: Mapping[str, JsonValue],
        packages: Sequence[str],
        files: Sequence[str] = (),
        memory_mb: int,
        call_seconds: float | None,
    ) -> None:
        """`program`: name of a source file next to this one. `files`: names of compiled sources whose lines may appear
        in a traceback. `call_seconds`: at most the limits' deadline, which None stands for. Opens a first box. Raises
        ConfigError for a package that is not installed, SandboxError where no box can be made, and RewardError where
        the program cannot be loaded in it."""
        self._packages = {name: _installed(name) for name in packages}
        text = resources.files(__package__).joinpath(program).read_text(encoding="utf-8")
        first = {"program": text, "hello": dict(hello), "files": list(files)}
        limits = Limits(
            wall_seconds=math.inf,
            cpu_seconds=10**9,  # counted over the whole life of a box; each call has its deadline
            memory_bytes=memory_mb * 2**20,
            output_bytes=OUTPUT_BYTES,
        )
        deadline = reward_limits.deadline_seconds
        call_seconds = min(call_seconds or deadline, deadline)
        message = json.dumps(first).encode()
        self._terms = Terms(shared_sandbox(), limits, tuple(packages), message, call_seconds, threading.Event())
        self._workers = reward_limits.workers
        self._slots = [Slot(self._terms) for _ in range(self._workers)]
        self._open()

    def _open(self) -> None:
        """Load the program in a first box. Whatever ends it, also a request to stop, leaves no box behind."""
        with ExitStack() as unless_loaded:
            unless_loaded.callback(self.close)
            answer = self._slots[0].loaded()
            if answer is None:
                unless_loaded.pop_all()
                return
        if answer.error_class == "infra":
            raise SandboxError(f"the verifier's box: {answer.error}")
        raise RewardError(f"the verifier cannot be loaded: {answer.error}{below(answer.traceback)}")

    def submit(self, requests: Sequence[Mapping[str, Any]], check: Callable[[], None]) -> list[Answer]:
        """One answer each, in order. What `check` raises stops the pending work and propagates."""
        if not requests:
            return []
        messages = [json.dumps(request).encode() for request in requests]
        waiting = deque(range(len(messages)))
        answers: dict[int, Answer] = {}
        self._terms.stop.clear()

        def work(slot: Slot) -> None:
            while not self._terms.stop.is_set():
                try:
                    index = waiting.popleft()
                except IndexError:
                    return
                answers[index] = slot.submit(messages[index])

        count = min(self._workers, len(messages))
        with ThreadPoolExecutor(count, thread_name_prefix="session") as threads:
            works = [threads.submit(work, slot) for slot in self._slots[:count]]
            try:
                while_waiting(
                    works, check, lambda: doing("reward", f"{len(answers)} of {len(messages)} samples scored")
                )
            finally:
                self._terms.stop.set()  # those that are not done end within a tick
        return [answers[index] for index in range(len(messages))]

    def facts(self) -> dict[str, Any]:
        """For the manifest: versions, level, limits."""
        return {
            "packages": dict(self._packages),
            "sandbox": self._terms.sandbox.report.words,
            "memory_mb": self._terms.limits.memory_bytes // 2**20,
            "call_seconds": self._terms.call_seconds,
            "workers": self._workers,
        }

    def close(self) -> None:
        """End all boxes; may be called twice."""
        self._terms.stop.set()
        for slot in self._slots:
            slot.close()


def while_waiting(futures: Iterable[Future[Any]], check: Callable[[], None], report: Callable[[], None]) -> None:
    """Until all are done: `check`, which may raise to stop, and `report`. Raises what a future raised."""
    pending = set(futures)
    while pending:
        check()
        report()
        done, pending = wait_for(pending, timeout=TICK)
        for future in done:
            future.result()


def _installed(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    raise ConfigError(
        f"the verifier asks for the package {package}, which is not installed on this machine: "
        f"pip install {package}, or take it out of the verifier's packages"
    )
