"""What a person does to a run that exists: cancel, pause, resume, retry, extend, put first; and pin its checkpoints.

Of a run on a worker only `Run.desired` changes: the worker reads it with its next beat, and the end that it then sends
decides (`attempts`).
"""

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import Refused
from cohort.catalog.models import BaseModel
from cohort.runs import dispatch
from cohort.runs.checkpoints import resumable
from cohort.runs.limits import queue_full
from cohort.runs.models import Checkpoint, Desired, Priority, Run, RunEvent, RunKind, RunState
from cohort.runs.preregistration import record_preregistration
from cohort.runs.run_values import config_values_store
from cohort.runs.transitions import (
    ENDED,
    ON_A_WORKER,
    SEALED_WITHIN,
    IllegalTransition,
    record_overdue,
    run_event,
    run_lock,
    run_logged,
    run_move,
)
from grpo_core.config.kinds import config_from_whole

_RETRIED = (RunState.FAILED, RunState.CANCELLED)
_EXTENDED = (RunState.SUCCEEDED, RunState.PAUSED, RunState.FAILED, RunState.CANCELLED)
_UNANSWERED = (
    f"Its record was requested and not made within {SEALED_WITHIN.total_seconds() / 60:.0f} minutes: the "
    "platform's worker that makes records may not be running, or ended while it made this one"
)
_REQUESTS = {Desired.CANCEL: ("cancel_asked", "Stopped"), Desired.PAUSE: ("pause_asked", "Paused")}


class NotPossible(Refused, code="not_possible"):
    """What was requested cannot be done to this run as it is. The message says why, for a person."""


@transaction.atomic
def run_cancel(*, run: Run, actor: User, reason: str = "") -> None:
    """Cancel a waiting or paused run at once; ask the worker of a live one to stop it. Asking again changes nothing.

    A trained run whose record could not be made, or does not come, ends as failed, without one: the fault may never be
    mended, and its checkpoints and weights are there. Raises IllegalTransition when the run has ended, or its record is
    being made, and NotPossible for a reason that is too long.
    """
    _short(reason)
    run_lock(run=run)
    if run.state in ON_A_WORKER:
        if run.desired != Desired.CANCEL:
            _request(run, actor, Desired.CANCEL, reason, "Cancel requested; the worker stops the trainer")
        return
    if run.state == RunState.SEALING:
        newest = run.attempts.filter(fence=run.fence).annotate(now=Now()).values_list("ended_at", "now").first()
        if newest is None or not record_overdue(run, ended_at=newest[0], now=newest[1]):
            raise IllegalTransition(run.pk, RunState.SEALING, RunState.CANCELLED)
        words = f"Trained; ended without a record by {actor.username}" + (f": {reason}" if reason else "")
        run_move(
            run=run,
            to=RunState.FAILED,
            actor=audit.who(actor),
            reason=f"{words}. {run.reason or _UNANSWERED}",
            error_code="not_sealed",
        )
        return
    run_move(
        run=run, to=RunState.CANCELLED, actor=audit.who(actor), reason=_sentence("Stopped", actor.username, run, reason)
    )
    if run.fence:  # one that no worker ever had leaves no record: there is nothing to record
        dispatch.seal_on_commit(run_id=run.pk)


@transaction.atomic
def run_pause(*, run: Run, actor: User, reason: str = "") -> None:
    """Take a waiting run out of the queue at once; ask the worker of a live one to stop it at a checkpoint.

    Asking again changes nothing.

    Raises IllegalTransition for a run that is neither, and NotPossible for one that is being cancelled and for a
    reason that is too long.
    """
    _short(reason)
    run_lock(run=run)
    if run.state not in ON_A_WORKER:
        run_move(
            run=run, to=RunState.PAUSED, actor=audit.who(actor), reason=_sentence("Paused", actor.username, run, reason)
        )
        return
    if run.desired == Desired.CANCEL:
        raise NotPossible("it is being cancelled; a cancel cannot be undone", code="being_cancelled")
    if run.desired != Desired.PAUSE:
        _request(run, actor, Desired.PAUSE, reason, "Pause requested; the worker stops the trainer at a checkpoint")


@transaction.atomic
def run_resume(*, run: Run, actor: User) -> None:
    """Put a paused run back into the queue, or withdraw a pause that its worker has not come to yet.

    Raises IllegalTransition for any other run.
    """
    run_lock(run=run)
    if run.state in ON_A_WORKER and run.desired == Desired.PAUSE:
        run.desired, run.reason = Desired.RUN, ""
        run.save(update_fields=["desired", "reason"])
        _log_action(run, actor, "pause_withdrawn", "The pause was withdrawn", entry="run_pause_withdrawn")
        return
    if run.state != RunState.PAUSED:  # others may go back to the queue as well, but not by being resumed
        raise IllegalTransition(run.pk, RunState(run.state), RunState.QUEUED)
    _begin_again(run, actor)


@transaction.atomic
def run_retry(
    *, run: Run, actor: User, checkpoint: Checkpoint | None = None, from_start: bool = False, reason: str = ""
) -> None:
    """Put a failed or cancelled run back into the queue. It resumes from `checkpoint`, else from the newest there is,
    else, and with `from_start`, from its first step.

    Raises IllegalTransition for a run in another state, and NotPossible for a checkpoint from which nothing can
    continue, while the record of its end is being made, and for a reason that is too long.
    """
    _short(reason)
    run_lock(run=run)
    if run.state not in _RETRIED:
        raise IllegalTransition(run.pk, RunState(run.state), RunState.QUEUED)
    _leave_to_its_record(run)
    if checkpoint is not None and from_start:
        raise NotPossible(
            "it cannot resume from a checkpoint and from the first step: choose one of them", code="two_starts"
        )
    newest = resumable(run).first()
    if checkpoint is not None and not resumable(run).filter(pk=checkpoint.pk).exists():
        raise NotPossible(
            f"nothing can resume from the checkpoint at step {checkpoint.step:,}: it has been removed, is superseded, "
            "or is of another run. Choose another, or the first step",
            code="checkpoint_not_resumable",
        )
    chosen = None if from_start else checkpoint or newest
    if chosen is not None:
        start = "the evaluation before training" if chosen.step == 0 else f"step {chosen.step:,}"
    else:
        start = "the first step" if from_start or newest else "the first step, because there is no checkpoint"
    words = f"Retried from {start}" + (f": {reason}" if reason else "")
    data = {"checkpoint": chosen.pk if chosen else None, "step": chosen.step if chosen else None}
    logged = {"reason": reason, "data": {**data, "place": start}}
    _log_action(run, actor, "retried", words, data, entry="run_retried", **logged)
    _choose(run, checkpoint, from_start=from_start)
    _begin_again(run, actor)


@transaction.atomic
def run_extend(*, run: Run, actor: User, steps: int) -> None:
    """Train `steps` more than planned: back into the queue, on from the newest checkpoint.

    Raises IllegalTransition for a run that is waiting or live, NotPossible when `steps` is below 1, no checkpoint
    can be resumed, or the record of its end is being made, and ConfigError when the longer run would not be valid.
    """
    run_lock(run=run)
    if run.state not in _EXTENDED:
        raise IllegalTransition(run.pk, RunState(run.state), RunState.QUEUED)
    if steps < 1:
        raise NotPossible(f"a run is extended by one step or more, not by {steps}", code="too_few_steps")
    if run.kind == RunKind.SAMPLE:
        raise NotPossible("it has a step for every batch of its problems, so there are no more", code="fixed_length")
    _leave_to_its_record(run)
    if run.from_start:
        raise NotPossible(
            "it begins at the first step, as was chosen: cancel it and retry it from a checkpoint, or clone it with "
            "more steps",
            code="starts_anew",
        )
    newest = run.resume_from or resumable(run).first()  # chosen by a person before, while it waited
    if newest is None:
        raise NotPossible(
            "it has no checkpoint to resume from, so more steps would train it anew: clone it with more steps instead",
            code="no_checkpoint",
        )
    before = {"steps": run.config["optim"]["steps"], "config_digest": run.config_digest}
    longer = {**run.config, "optim": {**run.config["optim"], "steps": before["steps"] + steps}}
    config = config_from_whole(longer, source=f"run {run.pk} extended by {steps} steps")
    run.config, run.config_digest, run.steps_total = config.to_dict(), config.digest(), longer["optim"]["steps"]
    run.parsed_config = config
    run.save(update_fields=["config", "config_digest", "steps_total"])
    config_values_store(run_id=run.pk)
    words = (
        f"Extended by {steps:,} step{'' if steps == 1 else 's'}, from {before['steps']:,} to {run.steps_total:,}; "
        f"resumes from step {newest.step:,}"
    )
    change = {"before": before, "after": {"steps": run.steps_total, "config_digest": run.config_digest}}
    _log_action(run, actor, "extended", words, change, entry="run_extended", **change)
    record_preregistration(run=run)
    _choose(run, run.resume_from)
    _begin_again(run, actor)


@transaction.atomic
def run_prioritise(*, run: Run, actor: User, priority: int) -> None:
    """Change the run's place among those of its project. Raises NotPossible once it has ended, or for a bad one."""
    run_lock(run=run)
    if priority not in Priority.values:
        raise NotPossible(
            f"a priority is one of {', '.join(map(str, Priority.values))}, not {priority}", code="unknown_priority"
        )
    if run.state in ENDED:
        raise NotPossible("it has ended, so its priority would change nothing", code="already_ended")
    if run.priority == priority:
        return
    before, run.priority = Priority(run.priority), priority
    run.save(update_fields=["priority"])
    words = f"Priority {before.label.lower()} → {Priority(priority).label.lower()}"
    change = {"before": before.value, "after": priority}
    logged = {name: {"priority": value} for name, value in change.items()}
    _log_action(run, actor, "priority", words, change, entry="run_prioritised", **logged)


@transaction.atomic
def checkpoint_pin(*, checkpoint: Checkpoint, actor: User, pinned: bool) -> None:
    """Keep the checkpoint, or let it go when newer ones need its room. The worker learns of it with its next beat.

    Raises NotPossible for one that has been removed, for final weights, which always stay, and to let one go that is a
    base model.
    """
    run = run_lock(run=checkpoint.run)
    checkpoint.refresh_from_db()
    if checkpoint.final:
        raise NotPossible("final weights stay without a pin", code="final_weights")
    if pinned and checkpoint.removed_at is not None and checkpoint.stored_at is None:
        raise NotPossible(f"the checkpoint at step {checkpoint.step:,} has been removed", code="checkpoint_removed")
    if checkpoint.pinned == pinned:
        return
    if not pinned and (model := BaseModel.objects.filter(checkpoint=checkpoint).first()) is not None:
        raise NotPossible(f"it is the base model {model.name}, which needs its files", code="base_model")
    checkpoint.pinned = pinned
    if not pinned:
        checkpoint.requested_at = None
    checkpoint.save(update_fields=["pinned", "requested_at"])
    words = f"Checkpoint at step {checkpoint.step:,} " + ("pinned: it stays" if pinned else "no longer pinned")
    kind = "checkpoint_pinned" if pinned else "checkpoint_unpinned"
    data = {"checkpoint": checkpoint.pk, "step": checkpoint.step}
    _log_action(run, actor, kind, words, data, entry=kind, data=data)


@transaction.atomic
def run_sealed(*, run: Run) -> None:
    """The run's record is stored: a run that only waited for it has succeeded, every other one stays what it is.

    Called twice, or late, when the run has gone back to the queue since, it changes nothing.
    """
    run_lock(run=run)
    if run.state == RunState.SEALING:
        run_move(run=run, to=RunState.SUCCEEDED, actor="platform")
        dispatch.stages_on_commit(run_id=run.pk)


def requested_reason(*, run: Run) -> str:
    """Who requested the desired action, a cancel or a pause, and when; empty when no person did."""
    kind, verb = _REQUESTS.get(Desired(run.desired), ("", ""))
    events = RunEvent.objects.filter(run=run, kind=kind, actor__startswith="user:")
    event = events.order_by("-id").first() if kind else None
    return _sentence(verb, event.actor.removeprefix("user:"), run, event.data.get("reason", "")) if event else ""


def _short(reason: str) -> None:
    try:
        audit.reason_checked(reason)
    except audit.NotLoggable as error:
        raise NotPossible(" ".join(error.messages).removesuffix("."), code="bad_reason") from None


def _request(run: Run, actor: User, desired: Desired, reason: str, words: str) -> None:
    run.desired, run.reason = desired, reason
    run.save(update_fields=["desired", "reason"])
    kind, _ = _REQUESTS[desired]
    _log_action(run, actor, kind, reason or words, {"reason": reason}, entry=f"run_{kind}", reason=reason)


def _log_action(
    run: Run,
    actor: User,
    kind: str,
    message: str,
    details: dict[str, Any] | None = None,
    /,
    *,
    entry: str,
    **logged: Any,
) -> None:
    """Enter what the person did into the run's history, and as `entry` into the audit log."""
    run_event(run=run, actor=audit.who(actor), kind=kind, message=message, data=details)
    run_logged(run=run, actor=audit.who(actor), kind=entry, **logged)


def _leave_to_its_record(run: Run) -> None:
    """Raise NotPossible while the record of the end that the run is at may be in the making.

    It would be lost, and this end would be in no record. What has no record by then may never get one.
    """
    if run.fence == 0 or run.error_code == "not_sealed" or run.records.filter(end=run.ends).exists():
        return  # no worker ever had it, a person gave the record up, or it is there
    if Run.objects.filter(pk=run.pk, ended_at__gt=Now() - SEALED_WITHIN).exists():
        raise NotPossible("its record is being made; try again in a moment", code="record_pending")


def _choose(run: Run, checkpoint: Checkpoint | None, *, from_start: bool = False) -> None:
    """Where the next attempt begins; without a choice at the newest checkpoint."""
    run.resume_from, run.from_start = checkpoint, from_start
    run.save(update_fields=["resume_from", "from_start"])


def _begin_again(run: Run, actor: User) -> None:
    """Queue the run at a person's request; earlier failures no longer count. Raises NotPossible when too many wait."""
    if full := queue_full(run):
        raise NotPossible(full.removesuffix("."), code="queue_full")
    run.retries = run.barren = 0
    run.not_before, run.log_tail = None, ""
    run.save(update_fields=["retries", "barren", "not_before", "log_tail"])
    run_move(run=run, to=RunState.QUEUED, actor=audit.who(actor))
    dispatch.train_on_commit(run=run)


def _sentence(verb: str, by: str, run: Run, words: str) -> str:
    """Stopped by alice after 12 steps: the model was wrong."""
    if run.step:
        when = f"after {run.step:,} step{'' if run.step == 1 else 's'}"
    else:
        when = "before its first step" if run.fence else "before it started"
    return f"{verb} by {by} {when}" + (f": {words}" if words else "")
