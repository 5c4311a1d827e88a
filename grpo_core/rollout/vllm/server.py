"""The vLLM server: one engine for one trainer on the same machine. Started by client.py as
`python -m grpo_core.rollout.vllm.server`, by an interpreter that has vLLM; people do not call it.

The first line of standard input holds the run's key and the engine's settings. It listens on the loopback address until
the trainer has come and shown that it knows the key; from then on it accepts no other client. It reports its start in a
line of JSON on standard output, its progress in frames before the answer; its log goes to standard error. It
ends with the trainer, whatever ends that.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from grpo_core.distributed import launch
from grpo_core.errors import GrpoError, RolloutError
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.vllm.settings import HOST, GenerateRequest, Settings, WrongKey, admit, receive, send
from grpo_core.runtime.fault_injection import fault

SHOW_KEY_WITHIN = 10.0
"""Seconds that a client has to show the key."""
REPORT_EVERY = 1.0
"""Seconds between two reports of progress, at least."""


class TrainerExited(Exception):
    """The connection to the trainer has ended."""


class Trainer:
    """The connection to the trainer, once it has come."""

    def __init__(self) -> None:
        self.line: socket.socket | None = None
        self._reported_at = 0.0

    def receive(self) -> Any:
        """Its next request. Raises what `wire.receive` does."""
        assert self.line is not None
        message = receive(self.line)
        self._reported_at = time.monotonic()
        return message

    def check(self) -> None:
        """Raises TrainerExited. It sends nothing while something is sampled, so what can be read is the connection's
        end."""
        if self.line is None:
            return
        try:
            seen = self.line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise TrainerExited from error
        if not seen:
            raise TrainerExited

    def report(self, what: str, detail: str, count: int) -> None:
        """How far the work is. Raises TrainerExited."""
        if self.line is None or time.monotonic() - self._reported_at < REPORT_EVERY:
            return
        try:
            send(self.line, {"doing": f"{what}, {detail}", "count": count})
        except OSError as error:
            raise TrainerExited from error
        self._reported_at = time.monotonic()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to all of a run's processes: the trainer decides when we end
    launch.follow_parent()
    # What vLLM prints goes to the log; our messages keep the original stdout.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply_to_starter(**words: Any) -> None:
        output.write(json.dumps(words) + "\n")

    first = sys.stdin.readline()
    if not first.endswith("\n"):
        return 1  # the process that started us is gone
    message = json.loads(first)
    settings, key = Settings(**message["settings"]), bytes.fromhex(message["key"])
    try:
        from grpo_core.rollout.vllm.engine import Engine

        trainer = Trainer()
        engine = Engine(settings, check=trainer.check, report=trainer.report)
    except GrpoError as error:
        reply_to_starter(failed=str(error), code=error.code)
        return error.exit_status
    except ImportError as error:
        reply_to_starter(failed=str(error), code=RolloutError.code)
        return RolloutError.exit_status
    with socket.create_server((HOST, 0), backlog=8) as door:
        reply_to_starter(port=door.getsockname()[1])
        line = admitted(door, key, log=lambda text: print(text, file=sys.stderr, flush=True))
    trainer.line = line
    with line, suppress(EOFError, OSError, TrainerExited):  # the trainer is gone, so the server ends
        _serve(engine, trainer, line)
    engine.close()
    return 0


def admitted(door: socket.socket, key: bytes, *, log: Callable[[str], None]) -> socket.socket:
    """The connection to the first client that knows the key."""
    while True:
        line, (host, port) = door.accept()
        line.settimeout(SHOW_KEY_WITHIN)
        try:
            admit(line, key)
        except (WrongKey, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            log(f"refused {host}:{port}: {error}")
            line.close()
            continue
        line.settimeout(None)
        return line


def _parts(line: socket.socket) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Incoming weights, part by part: each is acknowledged once the one before was taken."""
    while True:
        send(line, {"ok": True})
        message = receive(line)
        if message["do"] != "part":
            return
        fault("vllm:server:part")
        yield "weights_take_shared", (message["place"], message["entries"])


def _serve(engine: Any, trainer: Trainer, line: socket.socket) -> None:
    """Answer until the connection ends. A failure of vLLM is an answer too."""
    while True:
        message = trainer.receive()
        try:
            reply: dict[str, Any] = {"ok": _answer(engine, line, message)}
        except GrpoError as error:
            reply = {"failed": str(error), "code": error.code}
        send(line, reply)


def _answer(engine: Any, line: socket.socket, message: dict[str, Any]) -> Any:
    match message["do"]:
        case "generate":
            fault("vllm:server:generate")
            decoding = Decoding(**message["decoding"])
            return engine.generate(GenerateRequest(message["prompts"], message["seeds"], decoding, message["stop"]))
        case "score":
            return engine.score(message["texts"])
        case "load":
            engine.load_parts(_parts(line))
            return True
        case other:
            raise RolloutError(f"the trainer asked its vLLM server for {other!r}, which it does not know")


if __name__ == "__main__":
    sys.exit(main())
