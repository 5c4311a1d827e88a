"""How Celery's process starts the supervisor of a run or of a job of the lab, and waits for it.

A supervisor is a process of its own, so that neither it nor what it supervises can take Celery's process along.
"""

import os
import signal
import subprocess
import sys

from worker.celery_app import SHUTDOWN
from worker.node import sandbox

_GLANCE = 0.2


def supervise(module: str, number: int) -> int:
    """Run `python -m module NUMBER` to its end and return its status; a shutdown of the worker is passed on to it
    once."""
    words = [sys.executable, "-P", "-m", module, str(number), str(os.getpid())]
    handed = sandbox.handed_on(sandbox.report())
    supervisor = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, env=handed)
    while True:
        try:
            return supervisor.wait(_GLANCE)
        except subprocess.TimeoutExpired:
            if not SHUTDOWN.is_set():
                continue
        supervisor.send_signal(signal.SIGTERM)
        return supervisor.wait()
