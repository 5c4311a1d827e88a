"""The task of the lab's worker process. Its message is a hint that a job waits: a doubled or late one finds none.

It does nothing itself: a supervisor in a process of its own does one job, so that neither job nor supervisor can take
this process along.
"""

import logging
import os
import signal
import subprocess
import sys

from grpo_core.broker import LAB_JOB_TASK
from worker import sandboxed
from worker.celery_app import SHUTDOWN, app, refused

_GLANCE = 0.2

log = logging.getLogger(__name__)


@app.task(name=LAB_JOB_TASK)  # type: ignore[untyped-decorator]
def lab_job(job_id: int, **_: object) -> None:
    """Try to do one job. Keywords that a newer platform may add are ignored."""
    if SHUTDOWN.is_set():
        return
    status = _supervise(job_id)
    if status == os.EX_NOPERM:
        log.error(
            "the platform refuses this node's token, and the lab's worker stops. To let it in again, give it the token "
            "that `cohort node NAME --rotate` prints, and start it"
        )
        refused()
    elif status != 0:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the supervisor of job %s ended by %s; its lease tells the platform", job_id, how)


def _supervise(job_id: int) -> int:
    words = [sys.executable, "-P", "-m", "worker.supervise_job", str(job_id), str(os.getpid())]
    handed = sandboxed.handed_on(sandboxed.report())
    supervisor = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, env=handed)
    while True:
        try:
            return supervisor.wait(_GLANCE)
        except subprocess.TimeoutExpired:
            if not SHUTDOWN.is_set():
                continue
        supervisor.send_signal(signal.SIGTERM)
        return supervisor.wait()
