"""Messages from the platform to workers and to itself, by task name; sent only once the database has the change.

A message is a hint: one that cannot be published is logged, and the reconciler publishes it again.
"""

import logging
from functools import partial
from typing import Any

from django.db import transaction
from kombu.exceptions import ChannelError, KombuError
from kombu.exceptions import ConnectionError as BrokerConnectionError

from cohort.base.celery_app import app
from cohort.runs.models import Run
from cohort.runs.schedule import queue, seats, takeable
from grpo_core.protocol.queues import RUN_ATTEMPT_TASK, train_queue

SEAL_TASK = "cohort.records.seal"
RENEW_TASK = "cohort.records.renew_cards"
SEAL_QUEUE = "platform.seal"
"""Apart from the reconciler's, and with processes of its own: records take minutes, lost workers do not wait. With a
dot, as no label has one, so that no label can name it."""
BROKER_ERRORS = (KombuError, ChannelError, BrokerConnectionError, OSError)

log = logging.getLogger(__name__)


def run_queue(run: Run) -> str:
    """The queue that the nodes listen to which could take the run."""
    return train_queue(label=run.node_label, gpus=run.gpus)


def train_on_commit(*, run: Run) -> None:
    """Tell the workers that this run waits."""
    transaction.on_commit(partial(_publish, RUN_ATTEMPT_TASK, run.pk, run_queue(run)))


def next_on_commit() -> None:
    """A place may have become free: tell the workers of the runs whose turn it is, one for each queue."""
    transaction.on_commit(_publish_next)


def _publish_next() -> None:
    told: set[str] = set()
    for run in takeable(queue(), seats()):
        if (name := run_queue(run)) not in told:
            told.add(name)
            _publish(RUN_ATTEMPT_TASK, run.pk, name)


def seal_on_commit(*, run_id: int) -> None:
    """Ask for the record of a run that has ended or only waits for its record."""
    transaction.on_commit(partial(_publish, SEAL_TASK, run_id, SEAL_QUEUE))


def renew_cards(*, run_id: int) -> None:
    """Ask for the cards of a run without the texts that were deleted. The hourly task finds what gets lost."""
    _publish(RENEW_TASK, run_id, SEAL_QUEUE)


def _publish(task: str, run_id: int, to: str) -> None:
    try:
        app.send_task(task, args=[run_id], queue=to)
    except BROKER_ERRORS as error:
        log.warning("could not publish %s for run %s, the reconciler will: %s", task, run_id, error)


def waiting_messages(name: str) -> int | None:
    """How many messages nobody has taken yet; None when the broker cannot be asked."""
    with app.connection_for_read() as connection:
        # Asked past Celery, a broker's library raises errors of its own.
        errors = (*BROKER_ERRORS, *connection.connection_errors, *connection.channel_errors)
        try:
            declared: Any = connection.default_channel.queue_declare(queue=name, passive=True)
            return int(declared.message_count)
        except errors as error:
            if isinstance(error, ChannelError) and str(error.reply_code) == "404":
                return 0  # nothing was ever published to it
            log.warning("could not ask the broker about the queue %s: %s", name, error)
            return None
