"""The worker's tasks: one attempt of a run, one job of the reward lab.

A message is a hint that something waits: a doubled or late one finds nothing to claim. Each is done by a supervisor in
a separate process, so that neither it nor what it starts can take Celery's process along.
"""

import logging
import os
import signal
import subprocess
import sys
from typing import Literal

from grpo_core.protocol.queues import LAB_JOB_TASK, RUN_ATTEMPT_TASK
from worker.celery_app import SHUTDOWN, app, refused
from worker.environment import Environment, environment
from worker.node import facts
from worker.platform_client.client import Platform, PlatformError, node_of
from worker.processes.orphans import settle, still_leaving

_POLL_SECONDS = 0.2

log = logging.getLogger(__name__)


@app.task(name=RUN_ATTEMPT_TASK)  # type: ignore[untyped-decorator]
def run_attempt(run_id: int, **_: object) -> None:
    """Try to run one attempt. Keywords that a newer platform may add are ignored."""
    settings = environment()
    try:
        _clear(settings)
    except OSError as error:
        log.error("run %s not taken: what died in %s cannot be looked at: %s", run_id, settings.runs_folder, error)
        return  # as after a shutdown: the platform publishes the run again
    if _supervise("run", run_id) not in (0, os.EX_NOPERM):
        _settle(settings)


@app.task(name=LAB_JOB_TASK)  # type: ignore[untyped-decorator]
def lab_job(job_id: int, **_: object) -> None:
    """Try to do one job. Keywords that a newer platform may add are ignored."""
    _supervise("job", job_id)


def _supervise(kind: Literal["run", "job"], number: int) -> int:
    """Run a supervisor to its end and return its status. Where the platform refuses this node's token the worker
    stops."""
    if SHUTDOWN.is_set():
        return 0
    status = _spawn_supervisor(kind, number)
    if status == os.EX_NOPERM:
        log.error(
            "the platform refuses this node's token, and the worker stops. To let it in again, give it the token that "
            "`cohort node NAME --rotate` prints, and start it"
        )
        refused()
    elif status != 0:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the supervisor of %s %s ended by %s", kind, number, how)
    return status


def _spawn_supervisor(kind: str, number: int) -> int:
    """A shutdown of the worker is passed on to it once."""
    command = [sys.executable, "-P", "-m", "worker.supervisor", kind, str(number), str(os.getpid())]
    variables = facts.supervisor_environment(facts.report())
    supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=variables)
    while True:
        try:
            return supervisor.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if not SHUTDOWN.is_set():
                continue
        supervisor.send_signal(signal.SIGTERM)
        return supervisor.wait()


def _clear(settings: Environment) -> None:
    """Before a run: wait for the supervisors that an earlier worker left, then end what has none. What outlives even
    that keeps this worker's supervisor from claiming."""
    node = node_of(settings.resolved_node_token())
    logged = False
    while not SHUTDOWN.is_set() and (leaving := still_leaving(settings.runs_folder, node)):
        if not logged:
            log.info("waiting for the supervisors of an earlier worker to end runs %s", leaving)
        logged = True
        SHUTDOWN.wait(1.0)
    if not SHUTDOWN.is_set():
        _settle(settings)


def _settle(settings: Environment) -> None:
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        try:
            settle(settings.runs_folder, platform)
        except PlatformError as error:
            log.warning("attempts whose worker died could not be reported, which is tried again: %s", error)
