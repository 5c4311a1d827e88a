"""The worker's tasks: one attempt of a run, one job of the reward lab. Each is done by a supervisor in a process of its
own, so that nothing it does can take this process along.

A message is a hint that something waits: a doubled or late one finds nothing to claim.
"""

import logging
import os
import signal

from grpo_core.protocol.queues import LAB_JOB_TASK, RUN_ATTEMPT_TASK
from worker.celery_app import SHUTDOWN, app, refused
from worker.environment import Environment, environment
from worker.platform_client.client import Platform, node_of
from worker.processes.orphans import still_leaving, try_to_settle
from worker.supervising import supervise

log = logging.getLogger(__name__)


@app.task(name=RUN_ATTEMPT_TASK)  # type: ignore[untyped-decorator]
def run_attempt(run_id: int, **_: object) -> None:
    """Try to run one attempt, in a process of its own. Keywords that a newer platform may add are ignored."""
    settings = environment()
    try:
        _clear(settings)
    except OSError as error:
        log.error("run %s not taken: what died in %s cannot be looked at: %s", run_id, settings.runs_folder, error)
        return  # as after a shutdown: the platform publishes the run again
    if SHUTDOWN.is_set():
        return
    status = supervise("worker.supervise", run_id)
    if status != 0:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the supervisor of run %s ended by %s", run_id, how)
        _settle(settings)


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


def _clear(settings: Environment) -> None:
    """Before a run: wait for the supervisors that an earlier worker left, then end what has none. What outlives even
    that keeps this worker's supervisor from claiming."""
    node = node_of(settings.resolved_node_token())
    told = False
    while not SHUTDOWN.is_set() and (leaving := still_leaving(settings.runs_folder, node)):
        if not told:
            log.info("waiting for the supervisors of an earlier worker to end runs %s", leaving)
        told = True
        SHUTDOWN.wait(1.0)
    if not SHUTDOWN.is_set():
        _settle(settings)


def _settle(settings: Environment) -> None:
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        try_to_settle(settings.runs_folder, platform)
