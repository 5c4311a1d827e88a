"""The platform's own outages: after one no worker loses its lease for the time that the platform was down. Also
repairs times that lie too far ahead after the database's clock was set back.

Reads and writes ServiceBeat by the database's clock alone.
"""

import logging
import threading
from contextlib import closing
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from cohort.lab.models import LabJob
from cohort.nodes import leases
from cohort.nodes.models import Node
from cohort.runs.models import Attempt, AttemptState, Run, RunState, ServiceBeat
from cohort.runs.retry import DELAYS
from grpo_core.runtime.http import HttpClient, HttpError

RECONCILER = "reconciler"
WEB = "web"
GRACE = timedelta(seconds=60)
"""After an outage no attempt is ended for so long: every worker has time to beat again."""
AWAY = 4 * timedelta(seconds=settings.COHORT_ROUND_SECONDS)
"""A reconciler that was silent for longer was away, and with it, perhaps, the database. A third of a lease of 60 s,
half of one of 20 s to 40 s: after a shorter outage, what is left of every lease is time enough to beat again."""
WEB_AWAY = 3 * timedelta(seconds=settings.COHORT_PULSE_SECONDS)
"""The same for a web server, which calls itself as a worker would and beats when that is answered. While it is down, or
its threads are taken, no beat of a worker arrives."""
BEATLESS = timedelta(hours=1)
"""A web server that is silent for longer while workers call was started without that config, so its silence means
nothing. Before, it does: the calls of one worker may arrive while those of the others do not."""
CALL_SECONDS = settings.COHORT_PULSE_SECONDS
"""Longest time that the web server's own call may take."""
_AT_ONCE = timedelta(seconds=5)
"""A beat less far ahead was made during this check; one further ahead, before the clock was set back."""

log = logging.getLogger(__name__)


@transaction.atomic
def leases_count() -> bool:
    """Beat, and return whether an expired lease ends its attempt: not within 60 s after an outage.

    Called at every round of the reconciler. Without an earlier beat it runs for the first time, or its database is new;
    after a beat in the future the clock was set back, and it is unknown how long the reconciler was down.
    """
    with connection.cursor() as cursor:  # two rounds at once must not both read the previous beat
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('cohort reconciler beat', 0))")
    own = ServiceBeat.objects.filter(name=RECONCILER)
    if not own.exists():
        running = Attempt.objects.filter(state=AttemptState.RUNNING).exists()
        ServiceBeat.objects.create(name=RECONCILER, beat_at=Now(), grace_until=Now() + GRACE if running else None)
    elif why := _outage():
        if not own.filter(grace_until__gt=Now()).exists():
            log.warning("no lease ends until %d s after this: %s", GRACE.total_seconds(), why)
        own.update(beat_at=Now(), grace_until=Now() + GRACE)
    else:
        own.update(beat_at=Now())
        own.filter(grace_until__gt=Now() + GRACE).update(grace_until=Now() + GRACE)
    return own.filter(Q(grace_until=None) | Q(grace_until__lte=Now())).exists()


def _outage() -> str:
    """Which parts of the platform are or were down, in words; empty when none."""
    away = Q(beat_at__lt=Now() - AWAY) | Q(beat_at__gt=Now())
    if ServiceBeat.objects.filter(away, name=RECONCILER).exists():
        return "the reconciler or the database was away, or the database's clock was set back"
    silent = Q(beat_at__lt=Now() - WEB_AWAY) | Q(beat_at__gt=Now() + _AT_ONCE)
    web = ServiceBeat.objects.filter(silent, name=WEB)
    if not web.exists() or (web.filter(beat_at__lt=Now() - BEATLESS).exists() and _workers_called()):
        return ""
    return (
        "the web server sends no heartbeat, so calls of workers may not arrive. Its own log says why. If it does run, "
        "start it with `gunicorn --config python:cohort.server.gunicorn`, which sends it"
    )


def _workers_called() -> bool:
    """Whether worker calls arrived recently: then a web server runs, even when its own beat is missing."""
    late = (Now() - WEB_AWAY, Now() + _AT_ONCE)
    beaten = Attempt.objects.filter(state=AttemptState.RUNNING, heartbeat_at__range=late)
    return beaten.exists() or Node.objects.filter(last_seen_at__range=late).exists()


def leases_capped() -> int:
    """Shorten the leases that lie too far ahead. Returns how many."""
    return leases.cap(Attempt.objects.all()) + leases.cap(LabJob.objects.all())


def tries_capped() -> int:
    """Let no run wait longer for its next try than that try's delay from now. Returns how many were changed."""
    delays = [When(retries=number, then=Value(delay)) for number, delay in enumerate(DELAYS, 1)]
    after = Case(*delays, default=Value(max(DELAYS)))
    ahead = Run.objects.filter(state=RunState.QUEUED).annotate(after=after).filter(not_before__gt=Now() + F("after"))
    return ahead.update(not_before=Now() + after)


def pulse_start(address: str, host: str = "") -> threading.Event:
    """Beat in a separate thread until the returned event is set. The thread ends with the process. `address`: of this
    web server, as workers reach it; `host`: the name it is called by there, when that is another."""
    stop = threading.Event()
    threading.Thread(target=_beat_on, args=(address, host, stop), name="pulse", daemon=True).start()
    return stop


def pulse() -> None:
    """One beat, at the database's time. What the reconciler wrote in other rows stays."""
    ServiceBeat.objects.bulk_create(
        [ServiceBeat(name=WEB, beat_at=Now())],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["beat_at"],
    )


def _beat_on(address: str, host: str, stop: threading.Event) -> None:
    answering = True
    with closing(HttpClient(private=True)) as client:
        while not stop.is_set():
            if why := _silence(client, address, host):
                if answering:  # once for each outage
                    log.warning("no sign of life: %s", why)
            elif not answering:
                log.info("signs of life again")
            answering = not why
            stop.wait(settings.COHORT_PULSE_SECONDS)


def _silence(client: HttpClient, address: str, host: str) -> str:
    """Beat, if a call arrives here as a worker's would: through the socket, and by the threads that answer workers.
    Returns why there was no beat, or an empty text."""
    url = f"{address.rstrip('/')}/api/worker/v1/pulse"
    headers = {"Host": host} if host else {}
    try:
        reply = client.call("GET", url, headers=headers, seconds=CALL_SECONDS, max_bytes=4096)
        if reply.status != 204:
            return f"the web server answered {reply.status} to {url}: {reply.body[:300].decode(errors='replace')}"
        pulse()
    except HttpError as error:
        return f"the web server does not answer {url}: {error}"
    except (DatabaseError, InterfaceError) as error:
        return f"the database does not answer: {error}"
    finally:
        connection.close()  # between beats none is held, and a broken one is not used again
    return ""
