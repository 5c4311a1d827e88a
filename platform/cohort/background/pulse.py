"""The web server's own sign of life, so that its outage is not taken for that of the workers that could not reach it.

Each of its processes says every 10 s, or oftener beside a short lease, that it is here; the reconciler ends nobody's
lease while all of them are silent and no worker is heard.
A database that is away is told once in the log: the pulse goes on and is heard again when the database is.
"""

import logging
import threading

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.models.functions import Now

from cohort.runs.models import ServiceBeat

NAME = "web"

log = logging.getLogger(__name__)


def pulse_start() -> threading.Event:
    """Beat in a thread of its own until the event that is returned is set. The thread ends with the process."""
    stop = threading.Event()
    threading.Thread(target=_beat_on, args=(stop,), name="pulse", daemon=True).start()
    return stop


def pulse() -> None:
    """One beat, at the database's time. What the reconciler wrote beside it stays."""
    ServiceBeat.objects.bulk_create(
        [ServiceBeat(name=NAME, beat_at=Now())],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["beat_at"],
    )


def _beat_on(stop: threading.Event) -> None:
    heard = True
    while not stop.is_set():
        try:
            pulse()
            if not heard:
                log.info("the database answers again")
            heard = True
        except (DatabaseError, InterfaceError) as error:
            if heard:  # once for each outage
                log.warning("the database does not answer: %s", error)
            heard = False
        finally:
            connection.close()  # between beats none is held, and a broken one is not used again
        stop.wait(settings.COHORT_PULSE_SECONDS)
