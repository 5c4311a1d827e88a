"""Repairs what was lost: messages, workers, records that were not sealed; reports stalled runs, and opens alerts.

Runs every 5 s, started by Celery beat, and may run twice at once. Leases are also checked in a thread that
needs no message: without a broker, too, a dead worker's run must not stay Running. Compares times only with the
database's clock. A failure in one part does not stop the others: it is logged, the rest continues, and the
round fails at its end.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce, Now

from cohort.alerts.delivery import deliveries_republish
from cohort.alerts.opening import alerts_check
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.background.outages import leases_capped, leases_count, tries_capped
from cohort.lab.jobs import job_expire, jobs_republish
from cohort.lab.models import LabJob
from cohort.nodes import leases
from cohort.pipelines.services import pipeline_advance, waiting_pipelines
from cohort.records.cards.issue import CardRefused
from cohort.records.cards.pack import CardTooLarge
from cohort.records.models import Record
from cohort.records.pipeline_requests import pipeline_cards_republish
from cohort.records.services import version_pending
from cohort.records.status.services import statuses_republish
from cohort.review.rescores import figures_republish
from cohort.runs import dispatch
from cohort.runs.attempts import attempt_over
from cohort.runs.models import Attempt, AttemptState, Run, RunEvent, RunState
from cohort.runs.schedule import Queue, node_capacities, queue, takeable
from cohort.runs.transitions import ENDED, ON_A_WORKER, run_event, run_lock
from grpo_core.protocol.queues import RUN_ATTEMPT_TASK

UNSEALED = timedelta(seconds=60)
STALLED = timedelta(minutes=10)
STALLED_STEPS = 20
"""A run is stalled when nothing has moved for 10 minutes, or for 20 of its steps, whichever is longer."""
_LONGEST_PAUSE = 3600.0
_REFUSED = (CardRefused.code, CardTooLarge.code)
_MOST_OF_REFUSED = 3

# In this process's memory only: after a restart, every missing record is requested at once.
_seals_requested: dict[int, tuple[int, float]] = {}
"""By run, how often its record was requested again, and when last (monotonic)."""

log = logging.getLogger(__name__)

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


class RoundFailed(Exception):
    """Parts of a round of the reconciler failed; the log has their tracebacks. The message names them."""


class _Round:
    """Runs each part on its own."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def part(self, what: str, call: Callable[[*Given], Result], *given: *Given) -> Result | None:
        """What the call returns; None when it failed."""
        try:
            return call(*given)
        except Exception as error:  # any error: the other parts must still run
            log.exception("reconciling: %s failed; the rest continues", what)
            self.failed.append(f"{what} ({type(error).__name__})")
            return None

    def end(self) -> None:
        """Raises RoundFailed."""
        if self.failed:
            raise RoundFailed(f"failed: {', '.join(self.failed)}; all else was reconciled")


def reconcile() -> None:
    """One round. Raises RoundFailed once every part has had its turn."""
    this = _Round()
    _leases(this)
    this.part("tries too far ahead", tries_capped)
    this.part("stalled runs", stalls_record)
    this.part("waiting runs", queued_republish)
    this.part("waiting jobs of the lab", jobs_republish)
    this.part("stages of pipelines", stages_launch)
    this.part("missing records", seals_republish)
    this.part("cards of pipelines", pipeline_cards_republish)
    this.part("missing statuses of records", statuses_republish)
    this.part("figures of re-scores", figures_republish)
    this.part("alerts", alerts_check)
    this.part("deliveries of alerts", deliveries_republish)
    this.part("the audit log", audit.keep)
    this.end()


def leases_watch() -> threading.Event:
    """Check the leases in a separate thread, at once and every 5 s, until the returned event is set. The
    thread ends with the process."""
    stop = threading.Event()
    threading.Thread(target=_watch, args=(stop,), name="leases", daemon=True).start()
    return stop


def _watch(stop: threading.Event) -> None:
    while not stop.is_set():
        this = _Round()
        try:
            _leases(this)
            this.end()
        except RoundFailed as error:
            log.error("leases: %s", error)
        finally:
            connection.close()  # between rounds none is held, and a broken one is not used again
        stop.wait(settings.COHORT_ROUND_SECONDS)


def _leases(this: _Round) -> None:
    this.part("leases too far ahead", leases_capped)
    if this.part("the platform's own outages", leases_count):
        this.part("lost attempts", attempts_lost)
        this.part("lost jobs of the lab", jobs_lost)


def attempts_lost() -> list[int]:
    """End every attempt whose lease is over, also one that never beat. Returns the runs' ids.

    Raises RoundFailed once all have had their turn, when one of them could not be ended.
    """
    return _each("the end of attempt", _lose, [(pk,) for pk in leases.expired(Attempt.objects.all())])


def jobs_lost() -> list[int]:
    """Queue the lab's jobs whose lease is over again; the second time fail them. Returns their ids. Raises
    RoundFailed as `attempts_lost` does."""
    return _each("the end of job", job_expire, [(pk,) for pk in leases.expired(LabJob.objects.all())])


def _each(what: str, call: Callable[[int, *Given], int | None], rows: Sequence[tuple[int, *Given]]) -> list[int]:
    """The call's results for the rows, each of which begins with its id, without None."""
    this = _Round()
    results = [this.part(f"{what} {row[0]}", call, *row) for row in rows]
    this.end()
    return [result for result in results if result is not None]


def stages_launch() -> list[int]:
    """Launch each stage whose inputs are there and whose message was lost. Returns the ids of the pipelines. Raises
    RoundFailed as `attempts_lost` does."""
    return _each("the stages of pipeline", pipeline_advance, [(pk,) for pk in waiting_pipelines()])


@transaction.atomic
def _lose(attempt_id: int) -> int | None:
    run_lock(run=Run.objects.get(attempts=attempt_id))
    silence = Now() - Coalesce("heartbeat_at", "claimed_at")
    rows = Attempt.objects.select_related("run", "node").annotate(silence=silence)
    attempt: Any = leases.lock_expired(rows, attempt_id)
    if attempt is None:
        return None  # a beat or a finish came first
    message = (
        f"The worker {attempt.node.name} sent its last heartbeat {span(attempt.silence)} ago. "
        "It may have lost power, network or memory; everything it had sent is stored."
    )
    attempt_over(attempt=attempt, state=AttemptState.LOST, code="worker_lost", message=message, actor="platform")
    log.warning("run %s: %s", attempt.run_id, message)
    return int(attempt.run_id)


def stalls_record() -> list[int]:
    """Report once every run whose worker lives and whose trainer has made no progress for long. Returns the runs' ids.

    Raises RoundFailed once all have had their turn, when one of them could not be reported.
    """
    since = Coalesce("progress_at", "claimed_at")
    still = (
        Attempt.objects.filter(
            state=AttemptState.RUNNING, lease_until__gt=Now(), run__state__in=ON_A_WORKER, run__stalled_at=None
        )
        .annotate(moved_at=since, still_for=Now() - since)
        .filter(still_for__gt=STALLED)
        .values_list("pk", "moved_at", "still_for", "run__seconds_per_step")
    )
    silent = [
        (pk, moved_at, still_for)
        for pk, moved_at, still_for, step in still
        if still_for > max(STALLED, timedelta(seconds=STALLED_STEPS * (step or 0)))
    ]
    return _each("the silence of attempt", _stall, silent)


@transaction.atomic
def _stall(attempt_pk: int, moved_at: datetime, still_for: timedelta) -> int | None:
    """The run's id; None when something came first."""
    run = run_lock(run=Run.objects.get(attempts=attempt_pk))
    attempt = Attempt.objects.select_related("node").get(pk=attempt_pk)
    if attempt.state != AttemptState.RUNNING or moved_at != (attempt.progress_at or attempt.claimed_at):
        return None
    run.stalled_at = moved_at
    run.save(update_fields=["stalled_at"])
    message = (
        f"Nothing has moved for {span(still_for)}, although the worker on {attempt.node.name} lives. "
        f"Last seen: {_last_progress(attempt, run)}"
    )
    run_event(run=run, actor="platform", kind="stalled", message=message, data={"attempt": attempt.pk})
    log.warning("run %s: %s", run.pk, message)
    return run.pk


def _last_progress(attempt: Attempt, run: Run) -> str:
    """What the trainer last reported."""
    progress = attempt.progress
    phase = str(progress.get("phase") or run.phase or "starting").replace("_", " ")
    if progress.get("total"):
        return f"{phase}, {progress['done']:,} of {progress['total']:,}"
    return f"{phase}, step {run.step:,} of {run.steps_total:,}" if run.step else phase


def queued_republish() -> list[int]:
    """Publish again the runs that an available node could have taken for a while. Returns their ids."""
    waiting = queue()
    due = [run for run in takeable(waiting, node_capacities()) if _is_due(run, waiting)] if waiting.runs else []
    return sorted(dispatch.republish(RUN_ATTEMPT_TASK, {run.pk: dispatch.run_queue(run) for run in due}))


def _is_due(run: Run, waiting: Queue) -> bool:
    """Whether its message may be missing: none was sent for a run that waited for its next try."""
    assert run.queued_at is not None, "the run waits"
    # A run queued long after now was queued before the clock was set back.
    return run.not_before is not None or abs(waiting.now - run.queued_at) >= dispatch.UNCLAIMED


def seals_republish() -> list[int]:
    """Request again the record of every run that ended a minute ago without one or is still in the state sealing, and
    every further version that a person requested. Returns the ids of these runs.

    For each run after pauses that double, up to an hour: a slow seal is not started again and again, a failed one is
    retried. Where the cards themselves were refused, a few times only: the same rows make the same cards, and each try
    leaves an entry in the audit log; then a person or a restart requests it. A run that was cancelled before any worker
    had it leaves no record: there is nothing to record.
    """
    sealed = Record.objects.filter(run=OuterRef("run"), end=OuterRef("run__ends"))
    ended = Attempt.objects.filter(
        Q(run__state=RunState.SEALING) | Q(run__state__in=[RunState.FAILED, RunState.CANCELLED]) & ~Exists(sealed),
        fence=F("run__fence"),
        ended_at__lt=Now() - UNSEALED,
    ).values_list("run_id", flat=True)
    unsealed = {*ended, *_versions_waited_for()}
    for run_id in _seals_requested.keys() - unsealed:
        _seals_requested.pop(run_id, None)
    tries = RunEvent.objects.filter(run__in=unsealed, kind="seal_failed").order_by("run", "-pk").distinct("run")
    refused = {run_id for run_id, data in tries.values_list("run", "data") if data.get("code") in _REFUSED}
    due = sorted(run_id for run_id in unsealed if _seal_is_due(run_id, _MOST_OF_REFUSED if run_id in refused else None))
    for run_id in due:
        dispatch.seal_on_commit(run_id=run_id)
    return due


def _versions_waited_for() -> list[int]:
    """Runs of whose newest record a further version was requested a minute ago, is not sealed, and would hold something
    new. By the audit log, which finds requests by their kind: events are many."""
    requested = AuditEntry.objects.filter(kind="record_version_requested").values_list("subject", flat=True)
    records = Record.objects.filter(pk__in=[int(subject.removeprefix("record:")) for subject in requested])
    open_runs = records.filter(superseded_by=None, end=F("run__ends"), run__state__in=ENDED).values("run")
    requests = RunEvent.objects.filter(run__in=open_runs, kind="version_requested", at__lt=Now() - UNSEALED)
    since = RunEvent.objects.filter(run=OuterRef("run"), kind="sealed", pk__gt=OuterRef("pk"))
    waiting = requests.exclude(Exists(since)).values("run")
    return [run.pk for run in Run.objects.filter(pk__in=waiting) if version_pending(run) is not None]


def _seal_is_due(run_id: int, most: int | None) -> bool:
    """Whether it is time to request it, which this process does at most so many times; notes the time when it is."""
    times, last = _seals_requested.get(run_id, (0, float("-inf")))
    now = time.monotonic()
    if (most is not None and times >= most) or now - last < min(UNSEALED.total_seconds() * 2**times, _LONGEST_PAUSE):
        return False
    _seals_requested[run_id] = (min(times + 1, 10), now)
    return True


def span(length: timedelta) -> str:
    """A duration in words: 75 seconds, 12 minutes, 3 hours."""
    seconds = int(length.total_seconds())
    if seconds < 120:
        return f"{seconds} seconds"
    return f"{seconds // 60} minutes" if seconds < 7200 else f"{seconds // 3600} hours"
