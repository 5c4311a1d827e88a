"""Puts right what was lost on the way: messages, workers, records that were not sealed.

Runs every 30 s and may run twice at once. Compares times only with the database's clock. A lost attempt ends its run:
nothing retries it yet.
"""

import logging
import time
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now

from cohort.runs import dispatch
from cohort.runs.attempts import attempt_end
from cohort.runs.models import Attempt, AttemptState, Run, RunState
from cohort.runs.transitions import run_lock, run_move
from grpo_core.broker import TRAIN_QUEUE

UNCLAIMED = timedelta(seconds=30)
UNSEALED = timedelta(seconds=60)
_LONGEST_PAUSE = 3600.0

_seals_asked: dict[int, tuple[int, float]] = {}
"""By run, how often its record was asked for again, and when last (monotonic). Of this process alone: what failed for a
fault that has been mended is asked for at once after a restart."""

log = logging.getLogger(__name__)


def reconcile() -> None:
    attempts_lost()
    queued_republish()
    seals_republish()


def attempts_lost() -> list[int]:
    """End every attempt whose lease is over, one that never beat too, and fail its run. Returns the runs' ids."""
    expired = Attempt.objects.filter(state=AttemptState.RUNNING, lease_until__lt=Now()).values_list("pk", flat=True)
    return [run_id for pk in expired if (run_id := _lose(pk)) is not None]


@transaction.atomic
def _lose(attempt_pk: int) -> int | None:
    attempt = Attempt.objects.select_related("run", "node").get(pk=attempt_pk)
    run = run_lock(run=attempt.run)
    silent = (
        Attempt.objects.select_for_update()
        .filter(pk=attempt_pk, state=AttemptState.RUNNING, lease_until__lt=Now())
        .annotate(silence=Now() - Coalesce("heartbeat_at", "claimed_at"))
        .values_list("silence", flat=True)
        .first()
    )
    if silent is None:
        return None  # a beat or a finish came first
    reason = (
        f"The worker {attempt.node.name} was last heard of {span(silent)} ago. "
        "It may have lost power, network or memory; everything it had sent is stored."
    )
    attempt_end(attempt=attempt, state=AttemptState.LOST, actor="platform", reason=reason)
    run_move(run=run, to=RunState.FAILED, actor="platform", reason=reason, error_code="worker_lost")
    dispatch.seal_on_commit(run_id=run.pk)
    log.warning("run %s: %s", run.pk, reason)
    return run.pk


def queued_republish() -> list[int]:
    """Publish again the runs that waited too long, unless messages still lie in the queue: then workers are busy,
    and one message more for each run every 30 s would only pile up. Returns the runs' ids.
    """
    waiting = list(
        Run.objects.filter(state=RunState.QUEUED, queued_at__lt=Now() - UNCLAIMED)
        .order_by("queued_at")
        .values_list("pk", flat=True)
    )
    if not waiting or dispatch.waiting_messages(TRAIN_QUEUE) != 0:
        return []
    for run_id in waiting:
        dispatch.train_on_commit(run_id=run_id)
    return waiting


def seals_republish() -> list[int]:
    """Ask again for the record of every run that ended a minute ago without one, and of every run that has one and
    was not told. Returns the ids of the runs asked for.

    For each run after pauses that double, up to an hour: a seal that takes long is not started again and again, and
    one that fails is. A run that was cancelled before any worker had it leaves no record: there is nothing to record.
    """
    ended = Attempt.objects.filter(
        Q(run__state=RunState.SEALING) | Q(run__state__in=[RunState.FAILED, RunState.CANCELLED], run__record=None),
        fence=F("run__fence"),
        ended_at__lt=Now() - UNSEALED,
    ).values_list("run_id", flat=True)
    unsealed = set(ended)
    for run_id in _seals_asked.keys() - unsealed:
        _seals_asked.pop(run_id, None)
    due = sorted(run_id for run_id in unsealed if _seal_is_due(run_id))
    for run_id in due:
        dispatch.seal_on_commit(run_id=run_id)
    return due


def _seal_is_due(run_id: int) -> bool:
    """Whether it is time to ask; notes it when it is."""
    times, last = _seals_asked.get(run_id, (0, float("-inf")))
    now = time.monotonic()
    if now - last < min(UNSEALED.total_seconds() * 2**times, _LONGEST_PAUSE):
        return False
    _seals_asked[run_id] = (min(times + 1, 10), now)
    return True


def span(length: timedelta) -> str:
    """A length of time in the words of a sentence: 75 seconds, 12 minutes, 3 hours."""
    seconds = int(length.total_seconds())
    if seconds < 120:
        return f"{seconds} seconds"
    return f"{seconds // 60} minutes" if seconds < 7200 else f"{seconds // 3600} hours"
