"""Which state a run may go to from which, and the one function that moves it.

Every move is written down as a RunEvent of kind `state` in the same transaction. Nothing else may write Run.state.
"""

from django.db import transaction
from django.db.models.functions import Now

from cohort.runs.models import Run, RunEvent, RunState

S = RunState

ALLOWED: dict[RunState, frozenset[RunState]] = {
    S.DRAFT: frozenset({S.QUEUED, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.FAILED, S.CANCELLED}),
    S.STARTING: frozenset({S.EVALUATING, S.TRAINING, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.EVALUATING: frozenset({S.TRAINING, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.TRAINING: frozenset({S.EVALUATING, S.PAUSED, S.QUEUED, S.SEALING, S.FAILED, S.CANCELLED}),
    S.PAUSED: frozenset({S.QUEUED, S.FAILED, S.CANCELLED}),
    S.SEALING: frozenset({S.SUCCEEDED, S.FAILED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
"""evaluating → evaluating does not exist: before and after are parted by training."""

ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
ON_A_WORKER = frozenset({S.STARTING, S.EVALUATING, S.TRAINING})


class IllegalTransition(Exception):
    """A state change that the table does not know. `state` is the one the run is in."""

    def __init__(self, run_id: int, state: RunState, to: RunState) -> None:
        self.state, self.to = state, to
        super().__init__(f"run {run_id} is {state.label.lower()} and cannot become {to.label.lower()}")


def run_lock(*, run: Run) -> Run:
    """Lock the row and read it anew into `run`; unsaved changes to it are lost. Needs a transaction.

    Who needs both a run and its attempt locks the run first.
    """
    run.refresh_from_db(from_queryset=Run.objects.select_for_update())
    return run


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
    event = RunEvent.objects.create(
        run=run,
        at=Now(),
        actor=actor,
        kind="state",
        message=reason or f"{state.label} → {to.label}",
        data={"from": state, "to": to},
    )
    event.refresh_from_db(fields=["at"])
    if to == S.QUEUED:
        run.queued_at, fields = event.at, [*fields, "queued_at"]
    if to == S.STARTING and run.started_at is None:
        run.started_at, fields = event.at, [*fields, "started_at"]
    if to in ENDED:
        run.ended_at, fields = event.at, [*fields, "ended_at"]
    run.save(update_fields=fields)
    return event
