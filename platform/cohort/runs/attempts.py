"""What a worker does to a run: claim one, beat, finish; and how every attempt ends, whoever ends it.

Each write is bound to the attempt's fence. Times are the database's: a lease is compared with no other clock. Who locks
both locks the run before the attempt.
"""

from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, JSONField, Max, Value, When
from django.db.models.functions import Coalesce, Least, Now

import cohort
from cohort.base.refusals import Refused
from cohort.base.storable import storable
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.catalog.run_inputs import input_path
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import node_present, token_new
from cohort.runs import dispatch, retry, schedule
from cohort.runs.checkpoints import offers, pinned, resumable
from cohort.runs.models import Attempt, AttemptState, Checkpoint, Run, RunState, StepMetric
from cohort.runs.models.run import Desired
from cohort.runs.services import asked_reason
from cohort.runs.transitions import run_event, run_lock, run_move
from cohort.runs.waiting import Reasons
from grpo_core.protocol import messages as wire
from grpo_core.protocol.messages import Beat, CheckpointOffer, Finish, InputFile, LostAttempts, NodeInfo

_ALL_STORED = "Everything it had sent is stored."


class NotWaiting(Refused):
    """No run is to be had on this node now. The message says why."""

    code = "not_waiting"


class OtherVersion(Refused):
    """The worker is not of the platform's version."""

    code = "other_version"


class StaleFence(Refused):
    """The attempt has ended or a newer one has taken its place; it may write nothing."""

    code = "stale_fence"


class RecordsMissing(Refused):
    """The platform holds fewer records than the attempt wrote."""

    code = "records_missing"


@dataclass(frozen=True)
class Claimed:
    attempt: Attempt
    token: str
    files: list[InputFile]
    resume: list[CheckpointOffer]


def attempt_claim(*, run_id: int, node: Node, info: NodeInfo, claim_id: str = "") -> Claimed:
    """Give the node the run whose turn it is, as a new attempt; `run_id` only says which message woke the worker.

    The same `claim_id` (unless it is empty) from the same node gets the same attempt again, with another token, as long
    as nothing was heard of that attempt: then the first answer was lost.

    Raises OtherVersion, NotWaiting, and Run.DoesNotExist when there is neither such a run nor another one.
    """
    node_present(node=node, info=info)
    theirs = info.versions.get("cohort-grpo", cohort.__version__)
    if theirs != cohort.__version__:
        raise OtherVersion(
            f"the worker on {node.name} is of version {theirs} and the platform of {cohort.__version__}, and they read "
            f"each other's configs and records only within one version: install cohort-grpo=={cohort.__version__} "
            "there and start the worker again"
        )
    with transaction.atomic():
        schedule.alone()
        if (before := _claimed_before(node, claim_id)) is not None:
            return before
        if info.refuses:
            raise NotWaiting(f"the worker on {node.name} takes no run now: {info.refuses}", code="worker_refuses")
        run = schedule.turn(node=node)
        if run is None:
            raise NotWaiting(_why_none(run_id, node))
        return _claim(run, node, info, claim_id)


def _claimed_before(node: Node, claim_id: str) -> Claimed | None:
    """The attempt that this claim was given before, when its worker has not been heard of since; with a fresh token."""
    silent = Attempt.objects.filter(node=node, claim_id=claim_id, state=AttemptState.RUNNING, heartbeat_at=None)
    attempt = silent.select_related("run").first() if claim_id else None
    if attempt is None:
        return None
    run = run_lock(run=attempt.run)
    token, digest = token_new()
    if not silent.filter(pk=attempt.pk).update(token_digest=digest, lease_until=Now() + _lease()):
        return None  # it was ended in between
    attempt.refresh_from_db(fields=["token_digest", "lease_until"])
    return Claimed(attempt, token, [file for _, file in attempt_inputs(run=run)], offers(run))


def _claim(run: Run, node: Node, info: NodeInfo, claim_id: str) -> Claimed:
    """The run is locked and waits."""
    resume = offers(run)
    if not resume:
        # It begins at the first step, so nothing that earlier attempts recorded stands any more.
        run.attempts.update(valid_through=Least(Coalesce("valid_through", -1), -1))
        run.step, run.first_metrics, run.latest_metrics = 0, {}, {}
    else:  # what the trainer then really goes on from it tells itself
        run.step = min(run.step, resume[0].step)
    run.fence += 1
    run.phase, run.not_before, run.from_start = "", None, False
    run.save(update_fields=["fence", "phase", "not_before", "from_start", "step", "first_metrics", "latest_metrics"])
    token, digest = token_new()
    attempt = Attempt.objects.create(
        run=run,
        node=node,
        fence=run.fence,
        token_digest=digest,
        claimed_at=Now(),
        lease_until=Now() + _lease(),
        gpus=_gpus_held(run, info),
        claim_id=claim_id,
    )
    attempt.refresh_from_db()
    run_move(run=run, to=RunState.STARTING, actor=_actor(node))
    return Claimed(attempt, token, [file for _, file in attempt_inputs(run=run)], resume)


def _gpus_held(run: Run, info: NodeInfo) -> int:
    """On all machines together. A stored config may be of a version that knew one device only."""
    engine = run.config["engine"]
    if engine["device"] == "cpu" or (engine["device"] == "auto" and info.gpus == 0):
        return 0
    vllm = engine.get("vllm", {})
    served = int(vllm["devices"]) if engine.get("rollout") == "vllm" and vllm.get("place") == "server" else 0
    return int(engine.get("devices", 1)) * int(engine.get("nodes", 1)) + served


def _why_none(run_id: int, node: Node) -> str:
    """Raises Run.DoesNotExist."""
    run = Run.objects.select_related("project").get(pk=run_id)
    if run.state != RunState.QUEUED:
        return f"run {run_id} is {run.get_state_display().lower()}, not queued, and no other waits for {node.name}"
    asking = schedule.here(node)
    return f"run {run_id} waits: {Reasons(schedule.queue(), [asking]).why(run)}"


def attempt_inputs(*, run: Run) -> list[tuple[PromptDataset | EvalSuiteVersion, InputFile]]:
    """The datasets and suites that the run reads, each with the place that its config expects it in. Starter suites
    that the worker has itself, in the version that it shares with the platform, need no file."""
    rows: dict[str, PromptDataset | EvalSuiteVersion] = {}
    for dataset in (run.dataset, run.eval_dataset):
        if dataset is not None:
            rows[input_path(dataset)] = dataset
    wanted = {suite["path"] for suite in run.config["eval"].get("suites", ())}
    for version in run.suites.all():
        if (path := f"inputs/{version.sha256}.jsonl") in wanted:
            rows.setdefault(path, version)
    return [(row, InputFile(path=path, sha256=row.sha256, size=row.size)) for path, row in rows.items()]


def attempt_lock(*, attempt: Attempt, fence: int) -> None:
    """Lock run and attempt and read both anew. Raises StaleFence unless the attempt still owns the run."""
    run_lock(run=attempt.run)
    locked = Attempt.objects.select_for_update(of=["self"]).select_related("run", "node")
    attempt.refresh_from_db(from_queryset=locked)
    if attempt.state != AttemptState.RUNNING:
        raise StaleFence(f"attempt {attempt.fence} of run {attempt.run_id} has ended: {attempt.state}")
    if not fence == attempt.fence == attempt.run.fence:
        raise StaleFence(f"run {attempt.run_id} is at fence {attempt.run.fence}; this call came with {fence}")


def attempt_beat(*, attempt: Attempt, beat: Beat) -> tuple[wire.Desired, list[int]]:
    """Extend the lease; return what is wanted of the attempt, and the steps whose checkpoints stay. Raises StaleFence.

    A lease that is over is extended as well, as long as nobody has ended the attempt for it.
    """
    told = {} if beat.progress is None else beat.progress.model_dump(mode="json")
    moved = {} if not told else {"progress": told, "progress_at": _unless_same(told)}
    # A run has one running attempt at most (a unique constraint), and that is the newest: no need to lock the run.
    extended = Attempt.objects.filter(pk=attempt.pk, fence=beat.fence, state=AttemptState.RUNNING).update(
        heartbeat_at=Now(),
        lease_until=Now() + _lease(),
        spooled_bytes=beat.spooled_bytes,
        free_bytes=beat.free_bytes,
        **moved,
    )
    if not extended:
        raise StaleFence(f"attempt {attempt.fence} of run {attempt.run_id} no longer owns the run")
    Node.objects.filter(pk=attempt.node_id).update(last_seen_at=Now())
    now = (
        Attempt.objects.select_related("run", "node")
        .only("progress_at", "run__desired", "run__stalled_at", "node__draining")
        .get(pk=attempt.pk)
    )
    if now.run.stalled_at is not None and now.progress_at is not None and now.progress_at > now.run.stalled_at:
        run_moves(run=now.run)
    return _wish(now.run, now.node), pinned(now.run)


def _wish(run: Run, node: Node) -> wire.Desired:
    match Desired(run.desired):
        case Desired.CANCEL:
            return "cancel"
        case Desired.PAUSE:
            return "pause"
        case Desired.RUN:
            return "preempt" if node.draining == Draining.MOVE else "run"


def _unless_same(told: dict[str, object]) -> Case:
    """Now, except where this progress was told before."""
    return Case(When(progress=Value(told, JSONField()), then=F("progress_at")), default=Now())


@transaction.atomic
def run_moves(*, run: Run) -> None:
    """Something happens again in a run that was said to stand still."""
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
    if Attempt.objects.filter(pk=attempt.pk, fence=finish.fence, state=finish.end).exists():
        return
    attempt_lock(attempt=attempt, fence=finish.fence)
    if attempt.acked_seq < finish.last_seq:
        raise RecordsMissing(f"{finish.last_seq} records were written and {attempt.acked_seq} are stored")
    code, message = storable(finish.code)[:40], storable(finish.message)
    outcome = (attempt.outcome or {}).get("status")
    if finish.end == "finished" and outcome != "finished":
        code = "no_outcome"
        message = f"The worker reported success, but its records say {outcome or 'nothing'} of how the run ended"
    attempt_over(
        attempt=attempt,
        state=AttemptState(finish.end),
        code=code,
        message=message,
        actor=_actor(attempt.node),
        log_tail=storable(finish.log_tail),
    )


def attempts_released(*, node: Node, lost: LostAttempts) -> list[int]:
    """End those of the attempts that still count as running on this node: its worker was started again and found their
    processes gone. Returns the runs' ids."""
    released = []
    for told in lost.attempts:
        attempt = Attempt.objects.select_related("run", "node").filter(pk=told.attempt_id, node=node).first()
        message = (
            f"The worker on {node.name} ended in the middle of the run and found its processes gone. {_ALL_STORED}"
        )
        if attempt is not None and _lost(attempt, told.fence, "worker_lost", message, _actor(node)):
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
    run, wanted, advanced = attempt.run, Desired(attempt.run.desired), _advanced(attempt)
    words = ": ".join(part for part in (f"Attempt {attempt.fence} {state.label.lower()}", message) if part)
    told = {"attempt": attempt.pk, "fence": attempt.fence, "end": state, "code": code, "records": attempt.acked_seq}
    run_event(run=run, actor=actor, kind="attempt", message=words, data=told)
    if advanced:
        run.barren = 0  # however it ended: the failures before it and after it do not follow on each other
        run.save(update_fields=["barren"])
    if attempt.resumed_step is not None and run.resume_from_id is not None:
        run.resume_from = None  # what a person chose has come true; until then it is the next attempt's as well
        run.save(update_fields=["resume_from"])
    if state == AttemptState.FINISHED and code != "no_outcome":
        run_move(run=run, to=RunState.SEALING, actor=actor, log_tail=log_tail)
    elif state in (AttemptState.FINISHED, AttemptState.FAILED, AttemptState.LOST):
        _failed(attempt, advanced=advanced, code=code, message=message, actor=actor, log_tail=log_tail)
    elif state == AttemptState.CANCELLED or wanted == Desired.CANCEL:
        reason = asked_reason(run=run) or message
        run_move(run=run, to=RunState.CANCELLED, actor=actor, reason=reason, log_tail=log_tail)
    elif wanted == Desired.PAUSE or (state == AttemptState.PAUSED and code != "paused"):
        reason = asked_reason(run=run) if state == AttemptState.PREEMPTED or code == "paused" else message
        run_move(run=run, to=RunState.PAUSED, actor=actor, reason=reason, log_tail=log_tail)
    else:  # preempted; or paused by a worker that had not heard yet that the pause was taken back
        _requeue(run, actor=actor, reason=f"{retry.sentence(message)}Goes on from {_place(run)}", log_tail=log_tail)
    if run.state in (RunState.SEALING, RunState.FAILED, RunState.CANCELLED):
        dispatch.seal_on_commit(run_id=run.pk)
    dispatch.next_on_commit()


def _failed(attempt: Attempt, *, advanced: bool, code: str, message: str, actor: str, log_tail: str) -> None:
    """Try the run again, or end it, by the cause and by what it came to. What a person asked for goes before trying."""
    run = attempt.run
    decision = retry.decide(code=code, retries=run.retries, barren=run.barren, advanced=advanced)
    run.barren = decision.barren
    run.save(update_fields=["barren"])
    if isinstance(decision, retry.End):
        words = retry.told(decision, message=message, place="")
        run_move(run=run, to=RunState.FAILED, actor=actor, reason=words, error_code=code, log_tail=log_tail)
    elif run.desired != Desired.RUN:
        asked = {Desired.CANCEL: RunState.CANCELLED, Desired.PAUSE: RunState.PAUSED}[Desired(run.desired)]
        reason = f"{retry.sentence(asked_reason(run=run))}{message}"
        run_move(run=run, to=asked, actor=actor, reason=reason, error_code=code, log_tail=log_tail)
    else:
        run.retries = decision.number
        run.save(update_fields=["retries"])
        words = retry.told(decision, message=message, place=_place(run))
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
    """Whether the run got further by this attempt: to a checkpoint beyond the one it went on from, or to a step that
    none before it had come to."""
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


def _actor(node: Node) -> str:
    return f"node:{node.name}"


def _lease() -> timedelta:
    return timedelta(seconds=settings.COHORT_LEASE_SECONDS)
