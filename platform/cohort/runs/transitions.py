"""Which state a run may go to from which, the one function that moves it, and which rows of its attempts are
current.

Every move is stored as a RunEvent of kind `state` and as an entry of the audit log, in the same transaction.
Nothing else may write Run.state.
"""

from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import F, Model, Q, QuerySet
from django.db.models.functions import Now

from cohort.audit import services as audit
from cohort.base.storable import Refused
from cohort.runs.models import Desired, Run, RunEvent, RunState, StepMetric

# Which rows of a run are current and which a later attempt superseded: the one rule that every reader of steps, groups,
# evaluations and checkpoints shares.
#
# An attempt that resumes from step k takes the place of what earlier attempts recorded beyond k. Nothing is deleted and
# no row is touched: the earlier attempts' `valid_through` becomes k, and rows beyond it are superseded.

Row = TypeVar("Row", bound=Model)

_ALL = Q(attempt__valid_through=None)


def current_rows(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Of rows with `attempt` and `step` (steps, groups, checkpoints): those that are not superseded."""
    return rows.filter(_ALL | Q(step__lte=F("attempt__valid_through")))


def current_steps(run: Run | int) -> QuerySet[StepMetric]:
    """In order."""
    return current_rows(StepMetric.objects.filter(run=run)).order_by("step")


def superseded(rows: QuerySet[Row]) -> QuerySet[Row]:
    """The others."""
    return rows.filter(step__gt=F("attempt__valid_through"))


def current_evaluations(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Of rows with `attempt`, `phase` and `step`: what was measured before training is current unless a later attempt
    began at the beginning, what was measured while training as its step is, what was measured after it unless a later
    attempt continued at all."""
    during = Q(phase="during", step__lte=F("attempt__valid_through"))
    return rows.filter(_ALL | Q(phase="before", attempt__valid_through__gte=0) | during)


S = RunState

ALLOWED: dict[RunState, frozenset[RunState]] = {
    S.DRAFT: frozenset({S.QUEUED, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.PAUSED, S.FAILED, S.CANCELLED}),
    S.STARTING: frozenset({S.EVALUATING, S.TRAINING, S.PAUSED, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.EVALUATING: frozenset({S.TRAINING, S.PAUSED, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.TRAINING: frozenset({S.EVALUATING, S.PAUSED, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED}),
    S.SEALING: frozenset({S.SUCCEEDED, S.FAILED}),
    S.SUCCEEDED: frozenset({S.QUEUED}),
    S.FAILED: frozenset({S.QUEUED}),
    S.CANCELLED: frozenset({S.QUEUED}),
}
"""The same pairs are in the database's table runs_transition, whose trigger refuses any other; a test compares them.
An ended run goes back to the queue when a person retries or extends it. evaluating → evaluating does not exist: before
and after are parted by training."""

ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
ON_A_WORKER = frozenset({S.STARTING, S.EVALUATING, S.TRAINING})
WITH_A_RECORD = ENDED | {S.SEALING}
"""States in which the run has come to an end, of which there is a record or will be."""
SEALED_WITHIN = timedelta(minutes=10)
"""For so long after an end its record is waited for."""


OWN_KINDS = frozenset(
    {
        *(
            "created",
            "prompts_unchecked",
            "state",
            "attempt",
            "phase",
            "resumed",
            "stalled",
            "moving",
            "sealed",
            "seal_failed",
        ),
        *("version_requested", "cards_reissued"),
        *("cancel_asked", "pause_asked", "pause_withdrawn", "retried", "extended", "priority"),
        *("checkpoint_pinned", "checkpoint_unpinned", "checkpoint_stored", "checkpoint_registered"),
        *("checkpoint_requested", "checkpoint_unavailable"),
        *("dataset_stored", "dataset_refused"),
    }
)
"""Kinds of events that only the platform writes. A trainer's event of such a kind is refused: the machine that it runs
on runs untrusted code, and people and records read these as what the platform saw."""


class IllegalTransition(Refused, code="illegal_transition"):
    """A state change that the table does not know. `state` is the one the run is in."""

    def __init__(self, run_id: int, state: RunState, to: RunState) -> None:
        self.state, self.to = state, to
        super().__init__(f"run {run_id} is {state.label.lower()} and cannot become {to.label.lower()}")


def run_lock(*, run: Run) -> Run:
    """Lock the row and read it anew into `run`; unsaved changes to it are lost. Needs a transaction.

    Code that needs both a run and its attempt locks the run first.
    """
    run.refresh_from_db(from_queryset=Run.objects.select_for_update())
    return run


def record_overdue(run: Run, *, ended_at: datetime | None, now: datetime) -> bool:
    """Whether a person may end a trained run without its record: it could not be made, and the run says why; or it was
    requested long ago without an answer. `ended_at` is of the run's newest attempt."""
    unanswered = ended_at is not None and now - ended_at > SEALED_WITHIN
    return run.state == S.SEALING and (bool(run.reason) or unanswered)


def run_logged(*, run: Run, actor: str, kind: str, **entry: Any) -> None:
    """Enter into the audit log what a person did to the run; `entry` as of `audit.log`. Raises NotLoggable, as for a
    reason that is too long."""
    audit.log(actor=actor, kind=kind, subject=f"run:{run.pk}", project=run.project, **entry)


def run_event(*, run: Run, actor: str, kind: str, message: str, data: dict[str, Any] | None = None) -> RunEvent:
    """Record what happened to the run. `actor` is user:<name>, node:<name>, trainer or platform."""
    assert kind in OWN_KINDS, kind
    return RunEvent.objects.create(run=run, at=Now(), actor=actor, kind=kind, message=message, data=data or {})


@transaction.atomic
def run_move(
    *, run: Run, to: RunState, actor: str, reason: str = "", error_code: str = "", log_tail: str = ""
) -> RunEvent:
    """Lock the run, check the change, write state, times and event. `reason` is for a person and stays on the run.

    `log_tail` stays from then on as well. `actor` is user:<name>, node:<name>, trainer or platform. Raises
    IllegalTransition and then writes nothing.
    """
    run_lock(run=run)
    state = RunState(run.state)
    if to not in ALLOWED[state]:
        raise IllegalTransition(run.pk, state, to)
    run.state, run.error_code, run.log_tail = to, error_code, log_tail or run.log_tail
    if reason or to not in (S.EVALUATING, S.TRAINING):  # a cancel on its way keeps its reason from phase to phase
        run.reason = reason
    fields = ["state", "reason", "error_code", "log_tail"]
    words = reason or f"{state.label} → {to.label}"
    event = run_event(run=run, actor=actor, kind="state", message=words, data={"from": state, "to": to})
    event.refresh_from_db(fields=["at"])
    if to == S.QUEUED:
        run.queued_at, run.ended_at = event.at, None
        fields += ["queued_at", "ended_at"]
    if to not in ON_A_WORKER:  # no worker has a request to answer, and nothing can stall
        run.desired, run.stalled_at = Desired.RUN, None
        fields += ["desired", "stalled_at"]
    if to == S.STARTING and run.started_at is None:
        run.started_at = event.at
        fields.append("started_at")
    if to in WITH_A_RECORD and state != S.SEALING:  # what waits for its record has ended before
        run.ends += 1
        fields.append("ends")
    if to in ENDED:
        run.ended_at = event.at
        fields.append("ended_at")
    run.save(update_fields=fields)
    run_logged(
        run=run,
        actor=actor,
        kind="run_moved",
        before={"state": state.value},
        after={"state": to.value},
        reason=audit.fitted(reason, "the rest is in the run's events"),
        data={"error_code": error_code} if error_code else None,
    )
    return event
