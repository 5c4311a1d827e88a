"""The platform's Celery worker: `celery -A cohort.background.worker worker -B -Q platform`.

A second one with `-Q platform.seal` makes records. Both run the platform's own short tasks, never a
training task. The worker that takes the queue `platform` also looks at the leases, with and without a broker.
"""

import sys
import threading
from typing import Any

from celery import bootsteps

from cohort.audit.keyfile import usable_key
from cohort.base.celery_app import app
from cohort.base.environment import environment
from cohort.evidence.keys import KeyFault
from grpo_core.protocol.queues import PLATFORM_QUEUE

__all__ = ["app"]


class Leases(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts before the worker connects to its broker, and after it has forked its processes."""

    requires = ("celery.worker.components:Beat",)

    def __init__(self, worker: Any, **options: Any) -> None:
        self._stop = threading.Event()
        super().__init__(worker, **options)

    def include_if(self, worker: Any) -> bool:
        return PLATFORM_QUEUE in worker.app.amqp.queues.consume_from

    def start(self, worker: Any) -> None:
        from cohort.background.reconcile import leases_watch  # Django is set up only now

        self._stop = leases_watch()

    def stop(self, worker: Any) -> None:
        self._stop.set()


class Requirements(bootsteps.StartStopStep):  # type: ignore[misc]
    """No platform worker starts on a database of another version; nor, in production, one that could not sign: its runs
    would wait for their records for ever."""

    def __init__(self, worker: Any, **options: Any) -> None:
        from cohort.base.schema_version import OtherSchema, require_schema_at_start  # Django is set up only now

        try:
            if environment().mode == "production":
                usable_key()
            require_schema_at_start()
        except (KeyFault, OtherSchema) as error:
            sys.exit(f"Cohort's worker will not start: {error}")
        super().__init__(worker, **options)

    def include_if(self, worker: Any) -> bool:
        return False  # there is nothing to start or stop


app.steps["worker"].add(Requirements)
app.steps["worker"].add(Leases)
