"""The supervisor of a lab's job as a process of its own: `python -m worker.supervise_job JOB_ID STARTER`.

SIGTERM, which the kernel also sends when the starter is gone, gives the job back, and another worker takes it. When
this process is killed, the job's keeper ends the job, and its lease tells the platform.
"""

import logging
import os
import sys

from worker.begun import begin
from worker.node import disk
from worker.node.sandbox import carried
from worker.platform_client.client import Platform, Refused, Unreachable
from worker.supervisor.job import JobSupervisor

log = logging.getLogger("worker.supervise_job")


def main() -> int:
    """0 also when there was nothing to do; EX_NOPERM when the platform refuses this node's token."""
    begun = begin("job", log, tag="lab")
    if begun is None:
        return 0
    settings, job_id, stop = begun.settings, begun.number, begun.stop
    with Platform(settings.url, begun.token) as platform:
        supervisor = JobSupervisor(
            platform,
            settings.runs_folder,
            settings.models_folder,
            stop=stop,
            labels=tuple(settings.label_list),
            min_free_bytes=disk.least_free(settings.runs_folder, settings.min_free_bytes),
            device=settings.lab_device,
            sandbox=carried(os.environ),
            vllm_python=settings.vllm_python,
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
