"""What a worker does to a run: claim one, beat, finish; and how every attempt ends.

Each write is bound to the attempt's lease (`cohort.nodes.leases`). Who locks both, locks the run before the attempt.
"""

from datetime import timedelta
from typing import cast

from django.db import transaction
from django.db.models import Case, F, JSONField, Max, Value, When
from django.db.models.functions import Coalesce, Least, Now

from cohort.base.storable import Refused
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.catalog.run_inputs import input_rows
from cohort.nodes import leases
from cohort.nodes.leases import NotWaiting, StaleFence
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import node_present
from cohort.runs import dispatch, retry, schedule
from cohort.runs.base_models import ModelFile, model_inputs, reward_model_inputs, rewards_of
from cohort.runs.checkpoints import offers, pinned, resumable
from cohort.runs.models import Attempt, AttemptState, Checkpoint, Desired, Run, RunState, StepMetric
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.sampled_inputs import SampledAbout, sampled_abouts
from cohort.runs.services import requested_reason
from cohort.runs.transitions import run_event, run_lock, run_move
from cohort.runs.waiting import Reasons
from grpo_core.protocol import messages as wire
from grpo_core.protocol.messages import Beat, Finish, InputFile, LostAttempts, NodeInfo

_ALL_STORED = "Everything it had sent is stored."


class RecordsMissing(Refused, code="records_missing"):
    """The platform holds fewer records than the attempt wrote."""


def attempt_claim(*, run_id: int, node: Node, info: NodeInfo, claim_id: str = "") -> tuple[Attempt, str]:
    """Give the node the run whose turn it is, as a new attempt, with its token; `run_id` only names the message
    that woke the worker.

    The same `claim_id` (unless it is empty) from the same node gets the same attempt again, with another token, as long
    as that attempt has not beaten: then the first reply was lost.

    Raises OtherVersion, NotWaiting, and Run.DoesNotExist when there is neither such a run nor another one.
    """
    node_present(node=node, info=info)
    leases.require_version(node, info)
    with transaction.atomic():
        schedule.lock_schedule()
        granted = leases.granted_before(Attempt.objects.select_related("run"), node, claim_id)
        if granted is not None:
            return granted
        leases.require_free(Attempt.objects.all(), node, info, "run")
        run = schedule.turn(node=node)
        if run is None:
            raise NotWaiting(_why_none(run_id, node))
        return _claim(run, node, info, claim_id)


def _claim(run: Run, node: Node, info: NodeInfo, claim_id: str) -> tuple[Attempt, str]:
    """The run is locked and waits."""
    resume = offers(run)
    if not resume:
        # It begins at the first step, so all that earlier attempts recorded is superseded.
        run.attempts.update(valid_through=Least(Coalesce("valid_through", -1), -1))
        evaluation_values_store(run_id=run.pk)
        run.step, run.first_metrics, run.latest_metrics = 0, {}, {}
    else:  # the trainer reports which one it really resumes from
        run.step = min(run.step, resume[0].step)
    run.fence += 1
    run.phase, run.not_before, run.from_start = "", None, False
    run.save(update_fields=["fence", "phase", "not_before", "from_start", "step", "first_metrics", "latest_metrics"])
    token, leased = leases.grant(node, claim_id)
    attempt = Attempt.objects.create(**leased, run=run, fence=run.fence, claimed_at=Now(), gpus=_gpus_held(run, info))
    attempt.refresh_from_db()
    run_move(run=run, to=RunState.STARTING, actor=f"node:{node.name}")
    return attempt, token


def _gpus_held(run: Run, info: NodeInfo) -> int:
    """On all machines together."""
    engine = run.config["engine"]
    if engine["device"] == "cpu" or (engine["device"] == "auto" and info.gpus == 0):
        return 0
    served = engine["vllm"]["devices"] if engine["rollout"] == "vllm" and engine["vllm"]["place"] == "server" else 0
    return int(engine["devices"] * engine["nodes"] + served)


def _why_none(run_id: int, node: Node) -> str:
    """Raises Run.DoesNotExist."""
    run = Run.objects.select_related("project").get(pk=run_id)
    if run.state != RunState.QUEUED:
        return f"run {run_id} is {run.get_state_display().lower()}, not queued, and no other waits for {node.name}"
    capacity = schedule.current_capacity(node)
    return f"run {run_id} waits: {Reasons(schedule.queue(), [capacity]).why(run)}"


def attempt_inputs(*, run: Run) -> list[tuple[PromptDataset | EvalSuiteVersion | ModelFile | SampledAbout, InputFile]]:
    """The datasets, suites and files of its base model and reward models that the run reads, each with the path that
    its config expects it at."""
    further = [row.dataset for row in run.run_datasets.select_related("dataset")]
    rows = {
        **input_rows(run.config, (run.dataset, run.eval_dataset, *further), run.suites.all()),
        **sampled_abouts((run.dataset, *further)),
        **model_inputs(run.base_model),
        **reward_model_inputs(run.project_id, rewards_of(run.config)),
    }
    return [(row, InputFile(path=path, sha256=row.sha256, size=row.size)) for path, row in rows.items()]


def attempt_lock(*, attempt: Attempt, fence: int) -> None:
    """Lock run and attempt and read both anew. Raises StaleFence unless the attempt still owns the run."""
    run_lock(run=attempt.run)
    leases.lock(attempt, fence, "run", "node")


def attempt_beat(*, attempt: Attempt, beat: Beat) -> tuple[wire.Desired, list[int]]:
    """Extend the lease; returns the desired action, and the steps whose checkpoints stay. Raises StaleFence."""
    moved = {}
    if beat.progress is not None:
        progress = beat.progress.model_dump(mode="json")
        same = When(progress=Value(progress, JSONField()), then=F("progress_at"))
        moved = {"progress": progress, "progress_at": Case(same, default=Now())}
    # A run has one running attempt at most (a unique constraint), and that is the newest: no need to lock the run.
    leases.extend(attempt, beat.fence, spooled_bytes=beat.spooled_bytes, free_bytes=beat.free_bytes, **moved)
    assert attempt.node_id is not None, "it is of a worker"
    Node.objects.filter(pk=attempt.node_id).update(last_seen_at=Now())
    now = (
        Attempt.objects.select_related("run", "node")
        .only("progress_at", "run__desired", "run__stalled_at", "node__draining")
        .get(pk=attempt.pk)
    )
    if now.run.stalled_at is not None and now.progress_at is not None and now.progress_at > now.run.stalled_at:
        run_moves(run=now.run)
    preempted = now.run.desired == Desired.RUN and now.node.draining == Draining.MOVE
    return "preempt" if preempted else cast("wire.Desired", now.run.desired), pinned(now.run)


@transaction.atomic
def run_moves(*, run: Run) -> None:
    """A run that was reported as stalled makes progress again."""
    run_lock(run=run)
    if run.stalled_at is None:
        return
    run.stalled_at = None
    run.save(update_fields=["stalled_at"])
    run_event(run=run, actor="platform", kind="moving", message="The trainer moves again")


@transaction.atomic
def attempt_finish(*, attempt: Attempt, finish: Finish) -> None:
    """End the attempt and move its run on. The same finish a second time changes nothing.

    Raises RecordsMissing while records are outstanding, and StaleFence.
    """
    if leases.ended_as(attempt, finish.fence, finish.end):
        return
    attempt_lock(attempt=attempt, fence=finish.fence)
    if attempt.acked_seq < finish.last_seq:
        raise RecordsMissing(f"{finish.last_seq} records were written and {attempt.acked_seq} are stored")
    code, message = finish.code[:40], finish.message
    outcome = (attempt.outcome or {}).get("status")
    if finish.end == "finished" and outcome != "finished":
        code = "no_outcome"
        message = f"The worker reported success, but its records say {outcome or 'nothing'} of how the run ended"
    attempt_over(
        attempt=attempt,
        state=AttemptState(finish.end),
        code=code,
        message=message,
        actor=f"node:{attempt.node.name}",
        log_tail=finish.log_tail,
    )


def attempts_released(*, node: Node, lost: LostAttempts) -> list[int]:
    """End those of the attempts that still count as running on this node: its worker was started again and found their
    processes gone. Returns the runs' ids."""
    released = []
    message = f"The worker on {node.name} ended in the middle of the run and found its processes gone. {_ALL_STORED}"
    for entry in lost.attempts:
        attempt = Attempt.objects.select_related("run", "node").filter(pk=entry.attempt_id, node=node).first()
        if attempt is not None and _lost(attempt, entry.fence, "worker_lost", message, f"node:{node.name}"):
            released.append(attempt.run_id)
    return released


@transaction.atomic
def attempts_revoked(*, node: Node, actor: str) -> None:
    """End every attempt that runs on the node: its tokens were revoked, and none of them may ever write again.

    `actor` is user:<name> or platform.
    """
    where = f"by {actor.removeprefix('user:')}" if actor.startswith("user:") else "on the server"
    message = f"{node.name} was revoked {where}, so its worker may write nothing more. {_ALL_STORED}"
    running = Attempt.objects.filter(node=node, state=AttemptState.RUNNING).select_related("run", "node")
    for attempt in running.order_by("run_id"):
        _lost(attempt, attempt.fence, "node_revoked", message, actor)


@transaction.atomic
def _lost(attempt: Attempt, fence: int, code: str, message: str, actor: str) -> bool:
    try:
        attempt_lock(attempt=attempt, fence=fence)
    except StaleFence:
        return False  # it has ended otherwise
    attempt_over(attempt=attempt, state=AttemptState.LOST, code=code, message=message, actor=actor)
    return True


def attempt_over(
    *, attempt: Attempt, state: AttemptState, code: str, message: str, actor: str, log_tail: str = ""
) -> None:
    """End an attempt that is locked, with its run, and running, and move the run to where its cause sends it."""
    Attempt.objects.filter(pk=attempt.pk).update(state=state, ended_at=Now(), end_code=code, end_reason=message)
    attempt.refresh_from_db(fields=["state", "ended_at", "end_code", "end_reason"])
    run, desired, advanced = attempt.run, Desired(attempt.run.desired), _advanced(attempt)
    words = ": ".join(part for part in (f"Attempt {attempt.fence} {state.label.lower()}", message) if part)
    data = {"attempt": attempt.pk, "fence": attempt.fence, "end": state, "code": code, "records": attempt.acked_seq}
    run_event(run=run, actor=actor, kind="attempt", message=words, data=data)
    if advanced:
        run.barren = 0  # however it ended: the failures before and after it are not consecutive
        run.save(update_fields=["barren"])
    if attempt.resumed_step is not None and run.resume_from_id is not None:
        run.resume_from = None  # the person's choice has been used; until then the next attempt uses it too
        run.save(update_fields=["resume_from"])
    if state == AttemptState.FINISHED and code != "no_outcome":
        run_move(run=run, to=RunState.SEALING, actor=actor, log_tail=log_tail)
    elif state in (AttemptState.FINISHED, AttemptState.FAILED, AttemptState.LOST):
        _failed(attempt, advanced=advanced, code=code, message=message, actor=actor, log_tail=log_tail)
    elif state == AttemptState.CANCELLED or desired == Desired.CANCEL:
        reason = requested_reason(run=run) or message
        run_move(run=run, to=RunState.CANCELLED, actor=actor, reason=reason, log_tail=log_tail)
    elif desired == Desired.PAUSE or (state == AttemptState.PAUSED and code != "paused"):
        reason = requested_reason(run=run) if state == AttemptState.PREEMPTED or code == "paused" else message
        run_move(run=run, to=RunState.PAUSED, actor=actor, reason=reason, log_tail=log_tail)
    else:  # preempted; or paused by a worker that did not know yet that the pause was withdrawn
        _requeue(run, actor=actor, reason=f"{retry.sentence(message)}Resumes from {_place(run)}", log_tail=log_tail)
    if run.state in (RunState.SEALING, RunState.FAILED, RunState.CANCELLED):
        dispatch.seal_on_commit(run_id=run.pk)
    transaction.on_commit(dispatch.publish_next)


def _failed(attempt: Attempt, *, advanced: bool, code: str, message: str, actor: str, log_tail: str) -> None:
    """Try the run again, or end it, by the cause and by its progress. What a person requested comes first."""
    run = attempt.run
    decision = retry.decide(code=code, retries=run.retries, barren=run.barren, advanced=advanced)
    run.barren = decision.barren
    run.save(update_fields=["barren"])
    if isinstance(decision, retry.End):
        words = retry.explain(decision, message=message, place="")
        run_move(run=run, to=RunState.FAILED, actor=actor, reason=words, error_code=code, log_tail=log_tail)
    elif run.desired != Desired.RUN:
        requested = {Desired.CANCEL: RunState.CANCELLED, Desired.PAUSE: RunState.PAUSED}[Desired(run.desired)]
        reason = f"{retry.sentence(requested_reason(run=run))}{message}"
        run_move(run=run, to=requested, actor=actor, reason=reason, error_code=code, log_tail=log_tail)
    else:
        run.retries = decision.number
        run.save(update_fields=["retries"])
        words = retry.explain(decision, message=message, place=_place(run))
        _requeue(run, actor=actor, reason=words, error_code=code, log_tail=log_tail, delay=decision.delay)


def _requeue(
    run: Run,
    *,
    actor: str,
    reason: str,
    error_code: str = "",
    log_tail: str = "",
    delay: timedelta = timedelta(0),
) -> None:
    event = run_move(run=run, to=RunState.QUEUED, actor=actor, reason=reason, error_code=error_code, log_tail=log_tail)
    run.not_before = event.at + delay if delay else None
    run.save(update_fields=["not_before"])
    if not delay:
        dispatch.train_on_commit(run=run)


def _advanced(attempt: Attempt) -> bool:
    """Whether the run got further by this attempt: to a checkpoint beyond the one it resumed from, or to a step that
    no earlier one had reached."""
    from_step = -1 if attempt.resumed_step is None else attempt.resumed_step
    if Checkpoint.objects.filter(attempt=attempt, final=False, step__gt=from_step).exists():
        return True
    newest = StepMetric.objects.filter(attempt=attempt).aggregate(step=Max("step"))["step"]
    before = StepMetric.objects.filter(run=attempt.run_id, attempt__fence__lt=attempt.fence)
    return newest is not None and newest > (before.aggregate(step=Max("step"))["step"] or 0)


def _place(run: Run) -> str:
    """Where the next attempt begins, in words."""
    newest = run.resume_from or resumable(run).first()
    if newest is None:
        return "the first step"
    return f"step {newest.step:,}" if newest.step else "before its first step"
