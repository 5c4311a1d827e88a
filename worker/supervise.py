"""The supervisor as a process of its own: `python -m worker.supervise RUN_ID`, started by the worker's task.

It dies apart from Celery's main process and that one apart from it. SIGTERM, which the kernel also sends when the
starter is gone, means preempt: the trainer writes a checkpoint and the run goes on at another worker. When this process
is killed, the trainer's keeper ends the trainer, and the worker's task tells the platform.
"""

import logging
import os

from worker.begun import begin
from worker.folders.run_folder import trainer_command
from worker.node import disk
from worker.node.sandbox import carried
from worker.platform_client.client import Platform, Refused, Unreachable
from worker.supervisor.run import Supervisor

log = logging.getLogger("worker.supervise")

_EXPECTED = ("not_waiting", "unknown_run")


def main() -> int:
    """0 also when there was nothing to do: what happened is in the log and at the platform."""
    begun = begin("run", log, tag="supervisor")
    if begun is None:
        return 0
    settings, run_id, stop = begun.settings, begun.number, begun.stop
    with Platform(settings.url, begun.token) as platform:
        supervisor = Supervisor(
            platform,
            settings.runs_folder,
            settings.models_folder,
            stop=stop,
            command=trainer_command(settings.spool_cap_bytes),
            labels=tuple(settings.label_list),
            hosts=settings.hosts,
            remote_shell=settings.remote_shell,
            min_free_bytes=disk.least_free(settings.runs_folder, settings.min_free_bytes),
            upload_seconds=settings.upload_seconds,
            sandbox=carried(os.environ),
            vllm_python=settings.vllm_python,
        )
        try:
            if not stop.is_set():
                supervisor.run(run_id)
        except Refused as refused:
            level = logging.INFO if refused.code in _EXPECTED else logging.ERROR
            log.log(level, "run %s not claimed: %s", run_id, refused)
        except Unreachable as error:
            log.warning("run %s not claimed, the platform will offer it again: %s", run_id, error)
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # an upload that hangs in a call must not hold the worker
