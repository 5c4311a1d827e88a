"""Records that change where a run is: its trainer's phase, and the checkpoint that an attempt resumes from.

Called inside the transaction of `ingest`, with run and attempt locked.
"""

from dataclasses import dataclass

from django.db.models import F
from django.db.models.functions import Coalesce, Least

from cohort.ingest.copy import BadRecord, Table
from cohort.runs.models import Attempt, Checkpoint, Run, RunState, StepMetric
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.transitions import current_rows, current_steps, run_move
from grpo_core.records import types as records

PHASE_STATES: dict[str, RunState] = {
    "evaluating_before": RunState.EVALUATING,
    "training": RunState.TRAINING,
    "sampling": RunState.TRAINING,
    "evaluating_after": RunState.EVALUATING,
}
"""The other phases, loading and saving, leave the run's state as it is."""

PHASE_WORDS = {
    "loading": "loading model and data",
    "evaluating_before": "evaluating before training",
    "training": "training",
    "sampling": "sampling",
    "evaluating_after": "evaluating after training",
    "saving": "saving weights",
}
IN_STEPS = ("training", "sampling")
"""Phases whose units are the run's steps."""
_PLAN = Table(Run, "steps_total")


@dataclass(frozen=True)
class LockedAttempt:
    """The attempt whose records these are, as read under the lock."""

    attempt_id: int
    run_id: int
    fence: int
    step: int
    """The run's newest current step, from which the next one rises."""
    unbegun: bool
    """The run has no first metrics yet."""
    stalled: bool
    ended: bool
    """Its outcome is stored."""


def start_phase(attempt: LockedAttempt, seq: int, record: records.PhaseStarted) -> None:
    """Raises BadRecord for more steps than the column holds."""
    run = Run.objects.get(pk=attempt.run_id)
    state = PHASE_STATES.get(record.phase)
    if state is not None and state != run.state:
        run_move(run=run, to=state, actor="trainer")
    run.phase = record.phase
    if run.phase in IN_STEPS and record.total is not None:
        _PLAN.fit(seq, (record.total,))
        run.steps_total = record.total
    run.save(update_fields=["phase", "steps_total"])


def resume_attempt(attempt: LockedAttempt, seq: int, record: records.Resumed) -> None:
    """What earlier attempts recorded beyond the checkpoint is superseded; the run is where the checkpoint is. Raises
    BadRecord for a record that contradicts what is stored."""
    earlier = Checkpoint.objects.filter(
        run=attempt.run_id, attempt__fence__lt=attempt.fence, final=False, step=record.step
    )
    if not current_rows(earlier).exists():
        raise BadRecord.of(
            seq,
            f"step: the run has no checkpoint of step {record.step} that an attempt could resume from",
            "no_such_checkpoint",
        )
    begun = StepMetric.objects.filter(attempt=attempt.attempt_id, seq__lt=seq).exists()
    own = Attempt.objects.filter(pk=attempt.attempt_id, resumed_step=None)
    if begun or not own.update(resumed_step=record.step):
        raise BadRecord.of(seq, "the attempt has begun or been resumed before", "begun_before")
    Attempt.objects.filter(run=attempt.run_id, fence__lt=attempt.fence).update(
        valid_through=Least(Coalesce(F("valid_through"), record.step), record.step)
    )
    evaluation_values_store(run_id=attempt.run_id)
    # The best may lie beyond the checkpoint; then the one before it is the best again.
    every = Checkpoint.objects.filter(run=attempt.run_id)
    every.filter(best=True).update(best=False)
    if record.best is not None:
        again = current_rows(every.filter(step=record.best, final=False)).order_by("-attempt__fence").first()
        if again is not None:
            every.filter(pk=again.pk).update(best=True)
    steps = current_steps(attempt.run_id).values_list("metrics", flat=True)
    first, latest = steps.first(), steps.reverse().first()
    Run.objects.filter(pk=attempt.run_id).update(
        step=record.step, first_metrics=first or {}, latest_metrics=latest or {}
    )


def keep_good(attempt: LockedAttempt, step: int) -> None:
    """An update ruined the policy: the checkpoint of `step`, the last from before it, is pinned, and is the best where
    a later one was."""
    every = Checkpoint.objects.filter(run=attempt.run_id)
    good = current_rows(every.filter(step=step, final=False)).order_by("-attempt__fence").first()
    if good is None:
        return
    later = every.filter(best=True, step__gt=step).update(best=False)
    every.filter(pk=good.pk).update(pinned=True, **({"best": True} if later else {}))
