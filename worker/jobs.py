"""The task of the lab's worker process. Its message is a hint that a job waits: a doubled or late one finds none.

It does nothing itself: a supervisor in a process of its own does one job, so that neither job nor supervisor can take
this process along.
"""

import logging
import os
import signal

from grpo_core.protocol.queues import LAB_JOB_TASK
from worker.celery_app import SHUTDOWN, app, refused
from worker.supervising import supervise

log = logging.getLogger(__name__)


@app.task(name=LAB_JOB_TASK)  # type: ignore[untyped-decorator]
def lab_job(job_id: int, **_: object) -> None:
    """Try to do one job. Keywords that a newer platform may add are ignored."""
    if SHUTDOWN.is_set():
        return
    status = supervise("worker.supervise_job", job_id)
    if status == os.EX_NOPERM:
        log.error(
            "the platform refuses this node's token, and the lab's worker stops. To let it in again, give it the token "
            "that `cohort node NAME --rotate` prints, and start it"
        )
        refused()
    elif status != 0:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the supervisor of job %s ended by %s; its lease tells the platform", job_id, how)
