"""Looks into the broker's queues, whichever broker the tests run on."""

from contextlib import closing, suppress
from queue import Empty
from typing import Any

from cohort.base.celery_app import app


def take_all(queue: str) -> list[Any]:
    """Take every message out of the queue; the arguments of each, oldest first."""
    taken = []
    with app.connection_for_read() as connection, closing(connection.SimpleQueue(queue)) as waiting, suppress(Empty):
        while True:
            message = waiting.get(block=False)
            message.ack()
            taken.append(message.payload[0])
    return taken
