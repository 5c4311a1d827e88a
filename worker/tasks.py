"""The one task of a worker. Its message is a hint that a run waits: a doubled or late one finds nothing to claim."""

import logging

from grpo_core.broker import RUN_ATTEMPT_TASK
from worker.celery_app import SHUTDOWN, app
from worker.client import Platform, Refused, Unreachable
from worker.environment import environment
from worker.supervisor import Supervisor

log = logging.getLogger(__name__)


@app.task(name=RUN_ATTEMPT_TASK)  # type: ignore[untyped-decorator]
def run_attempt(run_id: int, **_: object) -> None:
    """Try to run one attempt. Keywords that a newer platform may add are ignored."""
    if SHUTDOWN.is_set():
        return  # the platform publishes the run again
    settings = environment()
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        supervisor = Supervisor(platform, settings.runs_folder, settings.models_folder, stop=SHUTDOWN)
        try:
            supervisor.run(run_id)
        except Refused as refused:
            level = logging.INFO if refused.code == "not_waiting" else logging.ERROR
            log.log(level, "run %s not claimed: %s", run_id, refused)
        except Unreachable as error:
            log.warning("run %s not claimed, the platform will offer it again: %s", run_id, error)
