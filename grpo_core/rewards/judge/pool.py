"""The processes that ask a judge's server (child.py): each does one request at a time, and is killed and started
anew when one is over its deadline.

Knows nothing of scores, retries or budgets. The environment of a child holds no key: that comes with each request.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PROGRAM = str(Path(__file__).with_name("child.py"))
_PASSED = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "GRPO_MARK")
"""What of the trainer's environment a child needs; the mark finds it when the trainer has died."""


class Child:
    """One process, and what it is doing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = bytearray()
        self.tag: Any = None
        """Of the request that it is at; None while it is free."""
        self.began = 0.0
        self.deadline = 0.0

    def ask(self, tag: Any, request: dict[str, Any]) -> None:
        """Begin a request, whose `seconds` are its deadline. The child must be free."""
        assert self.tag is None
        self.tag, self.began = tag, time.monotonic()
        self.deadline = self.began + request["seconds"]
        self._heard.clear()
        line = json.dumps(request).encode() + b"\n"
        try:
            self._say(line)
        except BrokenPipeError:  # it ended while it was free
            self.end()
            self._say(line)

    def _say(self, line: bytes) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
                bufsize=0,
                cwd="/",
            )
        assert self._process.stdin is not None
        left = memoryview(line)
        while left:
            left = left[self._process.stdin.write(left) :]

    @property
    def output(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def hear(self) -> dict[str, Any] | None:
        """What it answered, once all of that is there; call it when there is something to read."""
        part = os.read(self.output, 1 << 20)
        if not part:
            self.end()
            return {"trouble": "crashed", "message": "the process that asks the server ended"}
        self._heard += part
        if not self._heard.endswith(b"\n"):
            return None
        told: dict[str, Any] = json.loads(self._heard)
        return told

    def end(self) -> None:
        """End it, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


class Pool:
    """Some children, started when they are first needed."""

    def __init__(self, count: int) -> None:
        self._children = [Child() for _ in range(count)]

    @property
    def free(self) -> int:
        return sum(child.tag is None for child in self._children)

    def ask(self, tag: Any, request: dict[str, Any]) -> None:
        """Begin a request with a free child; `tag` comes back with the answer and is not None."""
        next(child for child in self._children if child.tag is None).ask(tag, request)

    def wait(self, seconds: float) -> list[tuple[Any, dict[str, Any], float]]:
        """(tag, answer, seconds it took) of those that are done; waits at most so long for the first. A child over its
        deadline is killed, and its answer is trouble `timeout`."""
        busy = [child for child in self._children if child.tag is not None]
        now = time.monotonic()
        if not busy:
            time.sleep(max(0.0, seconds))
            return []
        done = []
        with selectors.DefaultSelector() as ready:
            for child in busy:
                ready.register(child.output, selectors.EVENT_READ, child)
            until = min(seconds, min(child.deadline for child in busy) - now)
            heard = [(key.data, key.data.hear()) for key, _ in ready.select(max(0.0, until))]
        for child, told in heard:
            if told is not None:
                done.append(self._free(child, told))
        now = time.monotonic()
        for child in busy:
            if child.tag is not None and now >= child.deadline:
                child.end()
                message = f"timed out: no whole answer within {child.deadline - child.began:g} s"
                done.append(self._free(child, {"trouble": "timeout", "message": message}))
        return done

    def abandon(self) -> None:
        """Kill those that are at work; what they were asked is never answered."""
        for child in self._children:
            if child.tag is not None:
                child.end()
                child.tag = None

    def close(self) -> None:
        for child in self._children:
            child.end()
            child.tag = None

    def _free(self, child: Child, told: dict[str, Any]) -> tuple[Any, dict[str, Any], float]:
        tag, child.tag = child.tag, None
        return tag, told, time.monotonic() - child.began
