"""torchrun as `grpo train` uses it on each machine: the same arguments, but it ends as its first failed rank did and
names it, where torchrun's own command ends with status 1 and a traceback.

A stop request (SIGTERM) goes to every rank, and they have the time that a checkpoint takes. Started by launch.py.
"""

import os
import signal
import sys

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from grpo_core.distributed.environment import PARENT
from grpo_core.distributed.launch import end_by, follow_parent
from grpo_core.errors import Interrupted

PATIENCE = 120
"""Seconds that ranks have from a stop request to SIGKILL; the caller usually has less patience."""


def main(words: list[str]) -> int:
    follow_parent()
    os.environ[PARENT] = str(os.getpid())
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(PATIENCE))
    try:
        torchrun.run(torchrun.parse_args(words))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = cause(error.failures)
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            print(f"grpo: rank {rank} was killed by {name}; all others were ended", file=sys.stderr)
            end_by(-failure.exitcode)
        if failure.exitcode != Interrupted.exit_status:
            print(f"grpo: rank {rank} ended with status {failure.exitcode}", file=sys.stderr)
        return failure.exitcode
    except SignalException:
        return Interrupted.exit_status
    return 0


def cause(failures: "dict[int, ProcessFailure]") -> "tuple[int, ProcessFailure]":
    """(rank, how it ended) of the failure that the others follow from. A rank that a signal killed comes before those
    that ended of themselves in the same moment, because they had lost it. SIGTERM, and SIGKILL where that does not
    suffice, are what torchrun ends the others with."""
    first = min(failure.timestamp for failure in failures.values())

    def order(item: "tuple[int, ProcessFailure]") -> tuple[bool, bool, int, int]:
        rank, failure = item
        killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM and failure.timestamp <= first + 1
        return not killed, failure.exitcode == -signal.SIGTERM, failure.timestamp, rank

    return min(failures.items(), key=order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
