"""The program of a process that scores with rules which a text can make slow, one sample after the other.

`subprocess_pool.py` starts it, sends it requests and kills it. Frames on its standard input and output: four bytes of
length, then JSON. The first reply means ready. It runs only our own rules, never code of a person or a model.
"""

import json
import os
import resource
import signal
import sys
from functools import cache
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from grpo_core.rewards.base import Params, ScoreRequest
from grpo_core.rewards.registry import KINDS
from grpo_core.rewards.scoring import ruled
from grpo_core.rewards.subprocess_pool import LENGTH

_SAMPLE = TypeAdapter(ScoreRequest)
MEMORY_BYTES = 2 * 2**30
"""Address space of one such process."""


def main() -> None:
    """Score until the input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between replies
    for number in (signal.SIGINT, signal.SIGTERM):  # they go to the whole group; this process ends with its parent
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind in json.loads(sys.argv[1]):
        getattr(KINDS[kind].load(), "prepare", lambda: None)()  # before the first deadline runs
    _write_reply(output, {"ready": True})
    while (request := _read_request(sys.stdin.buffer)) is not None:
        # A killed parent cannot kill this process: then the kernel does, whatever it is busy with.
        signal.setitimer(signal.ITIMER_REAL, request["alarm"])
        kind = KINDS[request["kind"]]
        sample = _SAMPLE.validate_python(request["sample"])
        score = ruled(kind, _params(request["kind"], json.dumps(request["params"], sort_keys=True)), sample)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write_reply(output, score.model_dump(mode="json"))


@cache
def _params(kind: str, given: str) -> Params:
    return KINDS[kind].params.model_validate(json.loads(given))


def _read_request(stream: BinaryIO) -> Any:
    """The next request; None at the end of the input."""
    head = stream.read(LENGTH.size)
    return json.loads(stream.read(*LENGTH.unpack(head))) if len(head) == LENGTH.size else None


def _write_reply(stream: BinaryIO, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


if __name__ == "__main__":
    main()
