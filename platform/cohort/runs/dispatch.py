"""Messages from the platform to workers and to itself, by task name; sent only once the database has the change.

A message is a hint: one that cannot be published is logged, and the reconciler publishes it again.
"""

import logging
from functools import partial
from typing import Any

from django.db import transaction
from kombu.exceptions import ChannelError, KombuError
from kombu.exceptions import ConnectionError as BrokerConnectionError

from cohort.celery import app
from grpo_core.broker import PLATFORM_QUEUE, RUN_ATTEMPT_TASK, TRAIN_QUEUE

SEAL_TASK = "cohort.governance.seal"
BROKER_ERRORS = (KombuError, ChannelError, BrokerConnectionError, OSError)

log = logging.getLogger(__name__)


def train_on_commit(*, run_id: int) -> None:
    """Tell the workers that this run waits."""
    transaction.on_commit(partial(_publish, RUN_ATTEMPT_TASK, run_id, TRAIN_QUEUE))


def seal_on_commit(*, run_id: int) -> None:
    """Ask for the record of a run that has ended or only waits for its record."""
    transaction.on_commit(partial(_publish, SEAL_TASK, run_id, PLATFORM_QUEUE))


def _publish(task: str, run_id: int, queue: str) -> None:
    try:
        app.send_task(task, args=[run_id], queue=queue)
    except BROKER_ERRORS as error:
        log.warning("could not publish %s for run %s, the reconciler will: %s", task, run_id, error)


def waiting_messages(queue: str) -> int | None:
    """How many messages nobody has taken yet; None when the broker cannot be asked."""
    with app.connection_for_read() as connection:
        # Asked past Celery, a broker's library raises errors of its own.
        errors = (*BROKER_ERRORS, *connection.connection_errors, *connection.channel_errors)
        try:
            declared: Any = connection.default_channel.queue_declare(queue=queue, passive=True)
            return int(declared.message_count)
        except errors as error:
            if isinstance(error, ChannelError) and str(error.reply_code) == "404":
                return 0  # nothing was ever published to it
            log.warning("could not ask the broker about the queue %s: %s", queue, error)
            return None
