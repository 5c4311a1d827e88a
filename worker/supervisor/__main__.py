"""The supervisor as a process: `python -m worker.supervisor run|job NUMBER PARENT`, started by the worker's task.

It dies apart from Celery's main process, and that one apart from it. SIGTERM, which the kernel also sends when the
parent is gone, means shutdown: the trainer writes a checkpoint and the run is resumed by another worker; a job is
released. When this process is killed, the reaper ends the trainer or job. Then the worker's task reports a run, and a
job's lease expires.
"""

import logging
import os
import signal
import sys
import threading

from worker.environment import environment
from worker.folders.run_folder import trainer_command
from worker.node.facts import received_report, refusal
from worker.platform_client.client import Platform, Refused, Unreachable
from worker.processes.child import become_subreaper, die_with_parent
from worker.supervisor.job import run_job
from worker.supervisor.loop import Supervisor
from worker.supervisor.run import run_attempt

log = logging.getLogger("worker.supervisor")


def main() -> int:
    """EX_NOPERM when the platform refuses this node's token; 0 otherwise, also when there was nothing to do: what
    happened is in the log and on the platform. Raises MissingSetting."""
    kind, number, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s: %(levelname)s/supervisor] %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a call would drown the rest
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    if not die_with_parent(parent, signal.SIGTERM):
        return 0
    become_subreaper()
    settings = environment()
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        if reason := refusal(settings.runs_folder, settings.min_free_bytes, platform.node):
            log.error("%s %s not claimed: %s", kind, number, reason)
            return 0
        command = trainer_command(settings.spool_cap_bytes)
        supervisor = Supervisor(platform, settings, command, stop, received_report(os.environ))
        try:
            if not stop.is_set():
                (run_attempt if kind == "run" else run_job)(supervisor, number)
        except Refused as refused:
            expected = refused.code in ("not_waiting", "unknown_run")
            log.log(logging.INFO if expected else logging.ERROR, "%s %s not claimed: %s", kind, number, refused)
            return os.EX_NOPERM if refused.code == "unknown_token" else 0
        except Unreachable as error:
            log.warning("%s %s not claimed, the platform will offer it again: %s", kind, number, error)
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # an upload that hangs in a call must not hold the worker
