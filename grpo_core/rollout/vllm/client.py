"""The trainer's side of a vLLM server: starts it, talks to it, ends it.

The server runs on this machine, on the GPUs after the trainer's, under the trainer's interpreter or the one that
GRPO_VLLM_PYTHON names. It dies with the trainer whatever ends that (PR_SET_PDEATHSIG, and the connection's end).
"""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_core.distributed.environment import PARENT
from grpo_core.errors import DeviceError, ExchangeError, GrpoError, OutOfMemory, RolloutError
from grpo_core.rollout.vllm.settings import (
    CHUNK,
    HOST,
    GenerateRequest,
    Sampled,
    ServerExited,
    Settings,
    WrongKey,
    greet,
    receive,
    send,
)
from grpo_core.rollout.vllm.shared import Outgoing
from grpo_core.runtime.watchdog import doing, waiting

PYTHON = "GRPO_VLLM_PYTHON"
"""Interpreter of the environment that vLLM is installed in."""
LOG = "vllm.log"
PAUSE = 0.2
"""Seconds between two looks at whether the run shall stop, while the server works."""
LEAVES_WITHIN = 10.0
"""Seconds that the server has to end by itself when the connection is closed."""
_LAST_LINES = 15
_NOT_ITS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""torchrun's variables for the trainer: the server is none of its ranks."""
_FAILURES: dict[str, type[GrpoError]] = {
    kind.code: kind for kind in (RolloutError, OutOfMemory, DeviceError, ExchangeError)
}
"""Errors that the server may report, by code."""


class Server:
    """A `settings.Sampler` in a separate process."""

    def __init__(
        self,
        settings: Settings,
        *,
        gpus: Sequence[str],
        threads: int | None,
        folder: Path | None,
        check: Callable[[], None],
        chunk: int = CHUNK,
    ) -> None:
        """`gpus`: names of those it may see. `folder`: where its log is kept, appended to; without one it goes where
        the trainer's errors go. Waits until it is ready. Raises what `settings.Sampler` lists, ServerExited."""
        self._check = check
        self._log = folder / LOG if folder is not None else None
        self._outgoing = Outgoing(chunk=chunk)
        self._line: socket.socket | None = None
        key = secrets.token_bytes(32)
        self.process = self._started(gpus, threads)
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            assert self.process.stdin is not None
            first = json.dumps({"key": key.hex(), "settings": asdict(settings)}) + "\n"
            with suppress(BrokenPipeError):  # it has ended: _port reports how
                self.process.stdin.write(first.encode())
                self.process.stdin.close()
            self._line = self._connect(self._port(), key)
            on_failure.pop_all()

    def generate(self, request: GenerateRequest) -> list[list[Sampled]]:
        """See `settings.Sampler`."""
        groups = self._call("generate", **asdict(request))
        return [[(tokens, logprobs) for tokens, logprobs in group] for group in groups]

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `settings.Sampler`."""
        logprobs: list[list[float]] = self._call("score", texts=texts)
        return logprobs

    def load(self, weights: dict[str, Tensor]) -> None:
        """See `settings.Sampler`: in parts through shared memory."""
        self._call("load")
        for entries in self._outgoing.chunks(weights):
            self._call("part", place=self._outgoing.location, entries=entries)
        self._call("loaded")

    def close(self) -> None:
        """End the server, if it has not ended. May be called again."""
        if self._line is not None:
            self._line.close()
            self._line = None
            self._ended(LEAVES_WITHIN)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._outgoing.close()

    def _ended(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    # ------------------------------------------------------------------ start

    def _started(self, gpus: Sequence[str], threads: int | None) -> "subprocess.Popen[bytes]":
        python = os.environ.get(PYTHON) or sys.executable
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_ITS}
        environment |= {PARENT: str(os.getpid()), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        log = self._log.open("ab") if self._log is not None else None
        try:
            return subprocess.Popen(
                [python, "-P", "-m", "grpo_core.rollout.vllm.server"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        except OSError as error:
            raise RolloutError(f"{PYTHON} is {python!r}, which cannot be started: {error.strerror}") from error
        finally:
            if log is not None:
                log.close()

    def _port(self) -> int:
        """Wait for the server to report its port."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            with waiting("the vLLM server", "it starts"):
                self._wait_for(self.process.stdout.fileno())
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                how = f"{_how(self._ended(LEAVES_WITHIN))}{self._where()}"
                own = f". Where vLLM has an environment of its own, {PYTHON} names its interpreter"
                hint = "" if os.environ.get(PYTHON) else own
                raise RolloutError(f"the vLLM server did not start: {how}{hint}{self._last_lines()}")
            line += piece
        reply = json.loads(line)
        if "failed" in reply:
            raise self._failure(reply)
        return int(reply["port"])

    def _connect(self, port: int, key: bytes) -> socket.socket:
        line = socket.create_connection((HOST, port))
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet(line, key)
        except (WrongKey, EOFError, OSError, ValueError) as error:
            line.close()
            raise RolloutError(f"what answers at {HOST}:{port} is not this run's vLLM server: {error}") from error
        return line

    # ------------------------------------------------------------------ talk

    def _call(self, do: str, **words: Any) -> Any:
        assert self._line is not None
        try:
            with waiting("the vLLM server", f"it is to {do}"):
                send(self._line, {"do": do, **words})
                while "doing" in (reply := self._receive(self._line)):
                    doing("the vLLM server", f"it is to {do}: {reply['doing']}", reply["count"])
        except (EOFError, OSError) as error:
            self._check()  # a stop request may have ended the server too
            status = self._ended(LEAVES_WITHIN)
            how = f"{_how(status)}{self._where()}"
            raise ServerExited(f"the vLLM server has ended while it was to {do}: {how}") from error
        if "failed" in reply:
            raise self._failure(reply)
        return reply["ok"]

    def _receive(self, line: socket.socket) -> Any:
        self._wait_for(line.fileno())
        return receive(line)

    def _wait_for(self, fd: int) -> None:
        while not select.select([fd], [], [], PAUSE)[0]:
            self._check()

    def _failure(self, reply: dict[str, Any]) -> GrpoError:
        """The error that the server reports."""
        return _FAILURES[reply["code"]](f"the vLLM server: {reply['failed']}{self._where()}")

    def _where(self) -> str:
        return f" (its log is {self._log})" if self._log is not None else ""

    def _last_lines(self) -> str:
        if self._log is None:
            return ""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n" + "\n".join(lines[-_LAST_LINES:])


def _how(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "it does not answer"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"with status {status}"
