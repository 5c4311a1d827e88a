"""The platform's Celery app: `celery -A cohort.celery worker -B -Q platform`, and `-Q platform.seal` for records.

Sends runs to workers by task name and runs the platform's own short tasks. Never runs a training task. The worker that
takes the queue `platform` also looks at the leases, whether or not there is a broker.
"""

import os
import sys
import threading
from typing import Any

from celery import Celery, bootsteps
from celery.signals import beat_embedded_init, beat_init

from cohort import file_broker
from cohort.audit.keyfile import usable_key
from cohort.environment import environment
from cohort.evidence.keys import KeyFault
from cohort.settings import CELERY
from grpo_core.protocol.queues import PLATFORM_QUEUE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")  # Celery sets Django up when it finds this

_SCHEDULE = environment().home_folder / "beat-schedule"

file_broker.use()
app = Celery("cohort")
app.conf.update(CELERY)
app.conf.beat_schedule_filename = str(_SCHEDULE)
app.autodiscover_tasks()


class Leases(bootsteps.StartStopStep):  # type: ignore[misc]
    """Begins before the worker connects to its broker, and after what it forks."""

    requires = ("celery.worker.components:Beat",)

    def __init__(self, worker: Any, **options: Any) -> None:
        self._stop = threading.Event()
        super().__init__(worker, **options)

    def include_if(self, worker: Any) -> bool:
        return PLATFORM_QUEUE in worker.app.amqp.queues.consume_from

    def start(self, worker: Any) -> None:
        from cohort.runs.reconcile import leases_watch  # Django is set up only now

        self._stop = leases_watch()

    def stop(self, worker: Any) -> None:
        self._stop.set()


class Signing(bootsteps.StartStopStep):  # type: ignore[misc]
    """In production no platform worker starts that could not sign: its runs would wait for their records for ever."""

    def __init__(self, worker: Any, **options: Any) -> None:
        if environment().mode == "production":
            try:
                usable_key()
            except KeyFault as error:
                sys.exit(f"Cohort's worker will not start in production mode: {error}")
        super().__init__(worker, **options)

    def include_if(self, worker: Any) -> bool:
        return False  # there is nothing to start or stop


app.steps["worker"].add(Signing)
app.steps["worker"].add(Leases)


@beat_init.connect  # type: ignore[untyped-decorator]
@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def _make_home(**_: Any) -> None:
    _SCHEDULE.parent.mkdir(parents=True, exist_ok=True)
