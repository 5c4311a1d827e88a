"""The supervisor of a lab's job as a process of its own: `python -m worker.supervise_job JOB_ID STARTER`.

SIGTERM, which the kernel also sends when the starter is gone, gives the job back, and another worker takes it. When
this process is killed, the job's keeper ends the job, and its lease tells the platform.
"""

import logging
import os
import signal
import sys
import threading

from worker import disk
from worker.client import Platform, Refused, Unreachable, node_of
from worker.environment import environment
from worker.job_supervisor import JobSupervisor
from worker.node import refusal
from worker.process import become_reaper, die_with_parent
from worker.sandboxed import carried

log = logging.getLogger("worker.supervise_job")


def main() -> int:
    """0 also when there was nothing to do; EX_NOPERM when the platform refuses this node's token."""
    job_id, starter = int(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s: %(levelname)s/lab] %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a call would drown the rest
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if not die_with_parent(starter, signal.SIGTERM):
        return 0
    become_reaper()
    settings = environment()
    token = settings.resolved_node_token()
    if why := refusal(settings.runs_folder, settings.min_free_bytes, node_of(token)):
        log.error("job %s not claimed: %s", job_id, why)
        return 0
    with Platform(settings.url, token) as platform:
        supervisor = JobSupervisor(
            platform,
            settings.runs_folder,
            settings.models_folder,
            stop=stop,
            labels=tuple(settings.label_list),
            min_free_bytes=disk.least_free(settings.runs_folder, settings.min_free_bytes),
            device=settings.lab_device,
            sandbox=carried(os.environ),
        )
        try:
            if not stop.is_set():
                supervisor.run(job_id)
        except Refused as refused:
            level = logging.INFO if refused.code == "not_waiting" else logging.ERROR
            log.log(level, "job %s not claimed: %s", job_id, refused)
            return os.EX_NOPERM if refused.code == "unknown_token" else 0
        except Unreachable as error:
            log.warning("job %s not claimed, the platform will offer it again: %s", job_id, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
