"""How a supervisor begins, in its own process: signals, its starter, and whether this worker takes anything now."""

import logging
import signal
import sys
import threading
from dataclasses import dataclass

from worker.environment import Environment, environment
from worker.node.facts import refusal
from worker.platform_client.client import node_of
from worker.processes.child import become_reaper, die_with_parent


@dataclass(frozen=True)
class Begun:
    number: int
    """Of the run or job that the message told of."""
    settings: Environment
    token: str
    stop: threading.Event
    """Set by SIGTERM, which the kernel also sends when the starter is gone."""


def begin(what: str, log: logging.Logger, *, tag: str) -> Begun | None:
    """From the command line `NUMBER STARTER`. None when there is nothing to do: the starter is gone, or this worker
    takes nothing now, which is logged. Raises MissingSetting."""
    number, starter = int(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format=f"[%(asctime)s: %(levelname)s/{tag}] %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a call would drown the rest
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    if not die_with_parent(starter, signal.SIGTERM):
        return None
    become_reaper()
    settings = environment()
    token = settings.resolved_node_token()
    if why := refusal(settings.runs_folder, settings.min_free_bytes, node_of(token)):
        log.error("%s %s not claimed: %s", what, number, why)
        return None
    return Begun(number, settings, token, stop)
