"""The worker's Celery app: `celery -A worker.celery_app worker` takes runs one at a time, from the queue `train` and
those of its labels and GPUs; with `--queues lab` it takes jobs of the reward lab, one at a time, and no run.

Threads, not forked processes: the task only waits for a supervisor, a thread sees the shutdown that the main thread
receives, and supervisor and trainer are separate programs. Messages are acknowledged before the work, because only
the platform's claim decides who runs what.
"""

import logging
import os
import sys
import threading
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_ready, worker_shutting_down
from celery.worker import state
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError

from grpo_core.protocol.queues import LAB_QUEUE, TRAIN_QUEUE, WITHOUT_EVENTS, celery_transport, train_queues
from worker.devices import gpus
from worker.environment import MissingSetting, environment
from worker.node.heartbeat import start_heartbeat
from worker.processes.orphans import sweep

os.umask(0o077)  # inherited by supervisors and trainers: what they write is read by the worker's own user alone

SHUTDOWN = threading.Event()
"""Set when the worker is to stop: the task passes it on to its supervisor, which stops the trainer and reports."""


class WorkQueue(Queue):
    """Declared only where it is missing: a node's user of RabbitMQ may read its queues and do nothing else."""

    def declare(self, nowait: bool = False, channel: Any = None) -> str:
        try:
            self.queue_declare(passive=True, channel=channel)  # type: ignore[no-untyped-call]
        except ChannelError as error:
            if str(error.reply_code) != "404":
                raise
            super().declare(nowait=nowait, channel=channel)  # type: ignore[no-untyped-call]
        return str(self.name)


try:
    _BROKER_URL = environment().resolved_broker_url()
    _QUEUES = train_queues(labels=environment().label_list, gpus=len(gpus()))
except MissingSetting as error:
    sys.exit(f"The worker cannot start: {error}")


def _work_queue(name: str) -> WorkQueue:
    return WorkQueue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]


app = Celery("worker", include=["worker.tasks"])
app.conf.update(
    **celery_transport(_BROKER_URL, environment().broker_folder),
    task_default_queue=TRAIN_QUEUE,
    task_queues=[_work_queue(name) for name in _QUEUES],
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    worker_pool="threads",
    worker_concurrency=1,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    # The broker may be away for hours. And RabbitMQ closes the channel of a message that waits too long behind a run
    # (consumer_timeout, 30 minutes): the worker connects again, and the message goes to a worker that is free.
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    timezone="UTC",
)
app.amqp.queues.add(_work_queue(LAB_QUEUE))  # past the settings, where it would be read without --queues too


@worker_init.connect  # type: ignore[untyped-decorator]
def _prepare(sender: Any, **_: Any) -> None:
    sender.options.update(WITHOUT_EVENTS)
    try:
        environment().resolved_node_token()
    except MissingSetting as error:
        sys.exit(f"The worker cannot start: {error}")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a call would drown the rest
    # Before a run is taken: what an earlier process of this worker left may hold the GPU. The heartbeat's thread
    # reports it.
    if _trains():
        sweep(environment().runs_folder)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_heartbeat(**_: Any) -> None:
    if _trains():  # the lab's worker is no sign that runs are taken here
        start_heartbeat(environment(), SHUTDOWN, refused)


def _trains() -> bool:
    """Whether this process takes runs; one started with `--queues lab` takes jobs of the reward lab alone."""
    return any(name != LAB_QUEUE for name in app.amqp.queues.consume_from)


def refused() -> None:
    """Take no more messages, which other workers could answer; have the supervisor end what trains, which it kills
    without a checkpoint once the platform refuses the attempt's token too, as it does a revoked node's; exit with a
    separate status, for service managers that restart workers."""
    SHUTDOWN.set()
    state.should_stop = os.EX_NOPERM  # as Celery's own handlers of signals do it; but there the status is 0


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_trainer(**_: Any) -> None:
    SHUTDOWN.set()
