"""The worker's Celery app: `celery -A worker.celery_app worker` takes runs from the queue `train`, one at a time.

Threads, not forked processes: the task only supervises, a thread sees the shutdown that the main thread is told of,
and the trainer is a program of its own anyway. Messages are acknowledged before the work, because only the platform's
claim decides who runs what.
"""

import logging
import sys
import threading
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_ready, worker_shutting_down

from grpo_core.broker import TRAIN_QUEUE, celery_transport
from worker.environment import MissingSetting, environment
from worker.presence import stay_present

SHUTDOWN = threading.Event()
"""Set when the worker was told to stop: the supervisor stops its trainer and reports."""

try:
    _BROKER_URL = environment().resolved_broker_url()
except MissingSetting as error:
    sys.exit(f"The worker cannot start: {error}")

app = Celery("worker", include=["worker.tasks"])
app.conf.update(
    **celery_transport(_BROKER_URL, environment().broker_folder),
    task_default_queue=TRAIN_QUEUE,
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    worker_pool="threads",
    worker_concurrency=1,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    timezone="UTC",
)


@worker_init.connect  # type: ignore[untyped-decorator]
def _refuse_without_token(**_: Any) -> None:
    try:
        environment().resolved_node_token()
    except MissingSetting as error:
        sys.exit(f"The worker cannot start: {error}")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a call would drown the rest


@worker_ready.connect  # type: ignore[untyped-decorator]
def _stay_present(**_: Any) -> None:
    stay_present(environment(), SHUTDOWN)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_trainer(**_: Any) -> None:
    SHUTDOWN.set()
