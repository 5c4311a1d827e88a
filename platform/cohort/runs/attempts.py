"""What a worker does to a run: claim it, beat, finish. Each write is bound to the attempt's fence.

Times are the database's: a lease is compared with no other clock. Who locks both locks the run before the attempt.
"""

from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from cohort.catalog.models import PromptDataset
from cohort.runs import dispatch
from cohort.runs.models import Attempt, AttemptState, Node, Run, RunEvent, RunState
from cohort.runs.models.run import Desired
from cohort.runs.nodes import node_present, token_new
from cohort.runs.services import cancel_reason, input_path
from cohort.runs.text import storable
from cohort.runs.transitions import run_lock, run_move
from grpo_core.wire import Beat, Finish, InputFile, NodeInfo


class NotWaiting(Exception):
    """The run to be claimed is not in the queue, or another attempt has it."""


class StaleFence(Exception):
    """The attempt has ended or a newer one has taken its place; it may write nothing."""


class RecordsMissing(Exception):
    """The platform holds fewer records than the attempt wrote."""


@dataclass(frozen=True)
class Claimed:
    attempt: Attempt
    token: str
    files: list[InputFile]


@transaction.atomic
def attempt_claim(*, run_id: int, node: Node, info: NodeInfo) -> Claimed:
    """Give a queued run to this node as a new attempt. Raises NotWaiting, and Run.DoesNotExist."""
    run = Run.objects.select_for_update().get(pk=run_id)
    node_present(node=node, info=info)
    if run.state != RunState.QUEUED:
        raise NotWaiting(f"run {run_id} is {run.get_state_display().lower()}, not queued")
    run.fence += 1
    run.desired = Desired.RUN
    run.save(update_fields=["fence", "desired"])
    token, digest = token_new()
    attempt = Attempt.objects.create(
        run=run,
        node=node,
        fence=run.fence,
        token_digest=digest,
        claimed_at=Now(),
        lease_until=Now() + _lease(),
    )
    attempt.refresh_from_db()
    run_move(run=run, to=RunState.STARTING, actor=f"node:{node.name}")
    return Claimed(attempt, token, [file for _, file in attempt_inputs(run=run)])


def attempt_inputs(*, run: Run) -> list[tuple[PromptDataset, InputFile]]:
    """The datasets that the run reads, each with the place that its config expects it in."""
    datasets = {dataset.sha256: dataset for dataset in (run.dataset, run.eval_dataset) if dataset is not None}
    return [
        (dataset, InputFile(path=input_path(dataset), sha256=sha256, size=dataset.size))
        for sha256, dataset in datasets.items()
    ]


def attempt_lock(*, attempt: Attempt, fence: int) -> None:
    """Lock run and attempt and read both anew. Raises StaleFence unless the attempt still owns the run."""
    run_lock(run=attempt.run)
    attempt.refresh_from_db(from_queryset=Attempt.objects.select_for_update().select_related("run"))
    if attempt.state != AttemptState.RUNNING:
        raise StaleFence(f"attempt {attempt.fence} of run {attempt.run_id} has ended: {attempt.state}")
    if not fence == attempt.fence == attempt.run.fence:
        raise StaleFence(f"run {attempt.run_id} is at fence {attempt.run.fence}; this call came with {fence}")


def attempt_beat(*, attempt: Attempt, beat: Beat) -> Desired:
    """Extend the lease; return what the run is wanted to do. Raises StaleFence."""
    # A run has one running attempt at most (a unique constraint), and that is the newest: no need to look at the run.
    extended = Attempt.objects.filter(pk=attempt.pk, fence=beat.fence, state=AttemptState.RUNNING).update(
        heartbeat_at=Now(), lease_until=Now() + _lease(), spooled_bytes=beat.spooled_bytes
    )
    if not extended:
        raise StaleFence(f"attempt {attempt.fence} of run {attempt.run_id} no longer owns the run")
    Node.objects.filter(pk=attempt.node_id).update(last_seen_at=Now())
    return Desired(Run.objects.values_list("desired", flat=True).get(pk=attempt.run_id))


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
    message = storable(finish.message)
    attempt_end(attempt=attempt, state=AttemptState(finish.end), actor=f"node:{attempt.node.name}", reason=message)
    run, actor = attempt.run, f"node:{attempt.node.name}"
    outcome, tail = (attempt.outcome or {}).get("status"), storable(finish.log_tail)
    if finish.end == "finished" and outcome == "finished":
        run_move(run=run, to=RunState.SEALING, actor=actor, log_tail=tail)
    elif finish.end == "cancelled":
        reason = cancel_reason(run=run) or message
        run_move(run=run, to=RunState.CANCELLED, actor=actor, reason=reason, log_tail=tail)
    else:
        reason, code = message, finish.code
        if finish.end == "finished":
            code = "no_outcome"
            reason = f"The worker reported success, but its records say {outcome or 'nothing'} of how the run ended"
        run_move(
            run=run,
            to=RunState.FAILED,
            actor=actor,
            reason=reason,
            error_code=storable(code)[:40],
            log_tail=tail,
        )
    dispatch.seal_on_commit(run_id=run.pk)


def attempt_end(*, attempt: Attempt, state: AttemptState, actor: str, reason: str) -> None:
    """Close an attempt that is locked and running. What becomes of its run is the caller's to say."""
    Attempt.objects.filter(pk=attempt.pk).update(state=state, ended_at=Now(), end_reason=reason)
    attempt.refresh_from_db(fields=["state", "ended_at", "end_reason"])
    RunEvent.objects.create(
        run_id=attempt.run_id,
        at=Now(),
        actor=actor,
        kind="attempt",
        message=": ".join(part for part in (f"Attempt {attempt.fence} {state.label.lower()}", reason) if part),
        data={"attempt": attempt.pk, "fence": attempt.fence, "end": state, "records": attempt.acked_seq},
    )


def _lease() -> timedelta:
    return timedelta(seconds=settings.COHORT_LEASE_SECONDS)
