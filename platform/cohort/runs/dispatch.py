"""Messages from the platform to workers and to itself, by task name; sent only once the database has the change.

A message is a hint: one that cannot be published is logged, and the reconciler publishes it again.
"""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import transaction
from kombu.exceptions import ChannelError, KombuError
from kombu.exceptions import ConnectionError as BrokerConnectionError

from cohort.base.celery_app import app
from cohort.runs.models import Run
from cohort.runs.schedule import node_capacities, queue, takeable
from grpo_core.protocol.queues import PLATFORM_QUEUE, RUN_ATTEMPT_TASK, train_queue

SEAL_TASK = "cohort.records.seal"
RENEW_TASK = "cohort.records.renew_cards"
STATUS_TASK = "cohort.records.issue_status"
STAGES_TASK = "cohort.pipelines.launch_stages"
PIPELINE_CARD_TASK = "cohort.records.make_pipeline_card"
SEAL_QUEUE = "platform.seal"
"""Apart from the reconciler's, and with separate processes: records take minutes, lost workers do not wait. With a
dot, as no label has one, so that no label can name it."""
UNCLAIMED = timedelta(seconds=10)
"""What waits for longer, although a worker could take it, may have lost its message."""
REPEATED = 30.0
"""Seconds between two messages for the same row."""
_BROKER_ERRORS = (KombuError, ChannelError, BrokerConnectionError, OSError)

_published: dict[tuple[str, int], float] = {}
"""By task and id, when `republish` last sent a message from this process (monotonic)."""

log = logging.getLogger(__name__)


def run_queue(run: Run) -> str:
    """The queue that the nodes listen to which could take the run."""
    return train_queue(label=run.node_label, gpus=run.gpus)


def publish(task: str, row_id: int, to: str) -> None:
    try:
        app.send_task(task, args=[row_id], queue=to)
    except _BROKER_ERRORS as error:
        log.warning("could not publish %s for %s, the reconciler will: %s", task, row_id, error)


def publish_on_commit(task: str, row_id: int, to: str) -> None:
    transaction.on_commit(partial(publish, task, row_id, to))


def train_on_commit(*, run: Run) -> None:
    """Notify the workers that this run waits."""
    publish_on_commit(RUN_ATTEMPT_TASK, run.pk, run_queue(run))


def publish_next() -> None:
    """A node may have become free: notify the workers of the runs whose turn it is, one for each queue."""
    first: dict[str, int] = {}
    for run in takeable(queue(), node_capacities()):
        first.setdefault(run_queue(run), run.pk)
    for name, run_id in first.items():
        publish(RUN_ATTEMPT_TASK, run_id, name)


def seal_on_commit(*, run_id: int) -> None:
    """Request the record of a run that has ended or only waits for its record."""
    publish_on_commit(SEAL_TASK, run_id, SEAL_QUEUE)


def stages_on_commit(*, run_id: int) -> None:
    """The run succeeded: have what waits for it launched."""
    publish_on_commit(STAGES_TASK, run_id, PLATFORM_QUEUE)


def pipeline_card_on_commit(*, request_id: int) -> None:
    """Have the requested card of a pipeline made."""
    publish_on_commit(PIPELINE_CARD_TASK, request_id, SEAL_QUEUE)


def renew_cards(*, run_id: int) -> None:
    """Request the cards of a run without the texts that were deleted. The hourly task finds what gets lost."""
    publish(RENEW_TASK, run_id, SEAL_QUEUE)


def status_on_commit(*, record_id: int) -> None:
    """Request the signed status of a record to which something happened."""
    publish_on_commit(STATUS_TASK, record_id, PLATFORM_QUEUE)


def request_status(*, record_id: int) -> None:
    """Request the signed status of a record, at most every 30 s from one process."""
    republish(STATUS_TASK, {record_id: PLATFORM_QUEUE})


def republish(task: str, queues: Mapping[int, str]) -> list[int]:
    """Publish `task` again for each id, into its queue, unless that was done within 30 s or the queue has a message
    still, or busy workers would find more and more of them. Returns the ids published."""
    now = time.monotonic()
    for key in [key for key, at in _published.items() if now - at >= REPEATED]:
        del _published[key]
    due = {row_id: name for row_id, name in queues.items() if (task, row_id) not in _published}
    empty = {name for name in set(due.values()) if waiting_messages(name) == 0}
    ids = [row_id for row_id, name in due.items() if name in empty]
    for row_id in ids:
        _published[task, row_id] = now
        publish(task, row_id, due[row_id])
    return ids


def waiting_messages(name: str) -> int | None:
    """How many messages nobody has taken yet; None when the broker does not answer."""
    with app.connection_for_read() as connection:
        # Called past Celery, a broker's library raises its own errors.
        errors = (*_BROKER_ERRORS, *connection.connection_errors, *connection.channel_errors)
        try:
            declared: Any = connection.default_channel.queue_declare(queue=name, passive=True)
            return int(declared.message_count)
        except errors as error:
            if isinstance(error, ChannelError) and str(error.reply_code) == "404":
                return 0  # nothing was ever published to it
            log.warning("could not ask the broker about the queue %s: %s", name, error)
            return None
