"""The part of a run on a machine other than the first: controlled over standard input, ended when that ends.

Its first line says what to run, where, and which files must be there; later lines are `stop` or `kill`. End of input,
whatever the cause, ends the part, so nothing keeps running when the first machine is gone. Started by hosts.py as
`python -m grpo_core.distributed.part`; people do not call it.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.distributed.environment import PARENT
from grpo_core.errors import ConfigError

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL for what is left when something else has failed."""
PAUSE = 0.1


def serve() -> int:
    """Run one machine's part as the first line of standard input says; later lines are stop or kill."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: the lines after it are for _obey
        first = stdin.readline()
    if not first.endswith(b"\n"):
        return 1  # the parent is gone
    plan = json.loads(first)
    faults = missing_here(plan["inputs"])
    if not Path(plan["folder"]).is_dir():
        faults.insert(0, f"{plan['folder']} is not here")
    if faults:
        print(
            f"grpo: on {plan['host']}: {'; '.join(faults)}. Every machine of a run reads the same files at the same "
            "paths; put them on a disk that all share",
            file=sys.stderr,
        )
        return ConfigError.exit_status
    environment = {**os.environ, **plan["environment"], PARENT: str(os.getpid())}
    child = subprocess.Popen(plan["command"], cwd=plan["folder"], env=environment, stdin=subprocess.DEVNULL)
    _obey(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _obey(child: "subprocess.Popen[bytes]") -> None:
    """Until the child has ended: follow the commands on standard input."""
    os.set_blocking(0, False)
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    ends_at: float | None = None
    while child.poll() is None:
        if ends_at is not None and time.monotonic() > ends_at:
            child.kill()  # its ranks follow it
        if not waiting.get_map():
            time.sleep(PAUSE)
            continue
        if not waiting.select(PAUSE):
            continue
        received = os.read(0, 4096)
        if b"kill" in received:
            child.kill()
        elif b"stop" in received or not received:
            child.terminate()
        if not received:
            waiting.unregister(0)
            ends_at = time.monotonic() + GRACE


def missing_here(inputs: Sequence[Sequence[Any]]) -> list[str]:
    """What differs on this machine from another's inputs, as the plan has them, in words."""
    faults = []
    for name, size in inputs:
        path = Path(name)
        if not path.exists():
            faults.append(f"{path} is not here")
        elif size is not None and path.stat().st_size != size:
            faults.append(f"{path} has {path.stat().st_size:,} bytes here and {size:,} on the first machine")
    return faults


if __name__ == "__main__":
    sys.exit(serve())
