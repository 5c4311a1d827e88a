"""What workers do to a job of the reward lab: claim one, beat, finish; and what becomes of one whose worker is gone.

Each write is bound to the job's lease (`cohort.nodes.leases`). A job is not a run: it is tried twice at most, leaves no
record, and its result is checked here before it is stored, because a machine that runs untrusted code sent it.
"""

import hashlib
import logging
from datetime import timedelta
from typing import Any

import rfc8785
from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast, Length, Now
from pydantic import ValidationError

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import Refused, storable_json
from cohort.catalog.models import BaseModel
from cohort.catalog.run_inputs import data_part
from cohort.lab import turns
from cohort.lab.estimates import why_unschedulable
from cohort.lab.evaluations import evaluations_store
from cohort.lab.models import JobKind, JobState, LabJob, VerifierProbe
from cohort.nodes import leases
from cohort.nodes.leases import NotWaiting
from cohort.nodes.models import Node
from cohort.runs import dispatch, schedule
from cohort.runs.models import Attempt, AttemptState
from grpo_core.config.evaluation import HELDOUT
from grpo_core.lab.best_of_n import BestOfN
from grpo_core.lab.chat import ChatEnded
from grpo_core.lab.evaluation import ModelEvaluation
from grpo_core.lab.job import OF_CONFIG
from grpo_core.lab.preview import Preview
from grpo_core.lab.rescore import RescoreEnded
from grpo_core.lab.result import MAX_RESULT_BYTES, LabResult
from grpo_core.probe.report import ProbeReport
from grpo_core.protocol.messages import JobBeat, JobBeatReply, JobFinish, NodeInfo
from grpo_core.protocol.queues import LAB_JOB_TASK, LAB_QUEUE
from grpo_core.records.doctor import Diagnosis
from grpo_core.records.estimate import Estimate

DEADLINE = timedelta(hours=1)
"""A job that takes longer is ended by its worker."""
RESCORE_DEADLINE = timedelta(days=2)
"""A re-score may have a million samples to judge."""
CHAT_BEAT_SECONDS = 1.0
"""Between two beats of a chat's job, which bring messages and take answers."""
MAX_STORED_CHARS = 2 * MAX_RESULT_BYTES
"""Of a result as PostgreSQL writes it, which is what a page or an export reads."""
LOST = "worker_lost"

log = logging.getLogger(__name__)


class BadResult(Refused, code="bad_result"):
    """What the worker sent is not the result of such a job. Nothing of it is stored."""


def job_on_commit(*, job: LabJob) -> None:
    """Notify the workers that this job waits."""
    dispatch.publish_on_commit(LAB_JOB_TASK, job.pk, LAB_QUEUE)


# ---------------------------------------------------------------------- claim


@transaction.atomic
def job_claim(*, job_id: int, node: Node, info: NodeInfo, claim_id: str = "") -> tuple[LabJob, str]:
    """Give the node the job that has waited longest of those that it can do, with its token; `job_id` only names
    the message that woke the worker.

    The same `claim_id` (unless it is empty) from the same node gets the same job again, with another token, as long as
    the job has not beaten: then the first reply was lost. Raises OtherVersion, NotWaiting.
    """
    leases.require_version(node, info)
    jobs = LabJob.objects.select_related("dataset", "base_model", "node", "ground_truth", "conversation__reference")
    if (granted := leases.granted_before(jobs, node, claim_id)) is not None:
        return granted
    if node.draining:
        raise NotWaiting(f"{node.name} is draining and takes no new job", code="draining")
    leases.require_free(LabJob.objects.all(), node, info, "job")
    pk = _fitting(node, info).order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True).first()
    if pk is None:
        raise NotWaiting(_why_none(job_id, node))
    token, leased = leases.grant(node, claim_id)
    LabJob.objects.filter(pk=pk).update(**leased, fence=F("fence") + 1, started_at=Now(), progress={})
    return jobs.get(pk=pk), token


def _fitting(node: Node, info: NodeInfo) -> QuerySet[LabJob]:
    """Waiting jobs that this node can do now. An estimate is measured only where nothing else trains meanwhile."""
    waiting = LabJob.objects.filter(state=JobState.WAITING)
    estimates = list(waiting.filter(kind=JobKind.ESTIMATE).only("needs", "needs_sandbox"))
    if estimates:
        schedule.lock_schedule()  # no run is given to the node between this look and the claim
    busy = Attempt.objects.filter(node=node, state=AttemptState.RUNNING).exists()
    reported = Node(pk=node.pk, name=node.name, info=info.model_dump(mode="json"))
    capacity = schedule.node_capacity(reported, busy=busy)
    if capacity.no_sandbox:
        waiting = waiting.filter(needs_sandbox=False)
    return waiting.exclude(pk__in=[job.pk for job in estimates if why_unschedulable(job, capacity)])


def _why_none(job_id: int, node: Node) -> str:
    job = LabJob.objects.filter(pk=job_id).first()
    if job is None:
        return f"there is no job {job_id}, and no other waits for {node.name}"
    if job.state == JobState.WAITING and job.kind == JobKind.ESTIMATE:
        return f"job {job_id} measures a run, and {node.name} trains one now or is not the kind of node that it needs"
    if job.state == JobState.WAITING:
        return f"job {job_id} runs code that a person or a model wrote, and the sandbox of {node.name} does not work"
    return f"job {job_id} is {job.get_state_display()}, not waiting, and no other waits for {node.name}"


def job_config(job: LabJob) -> dict[str, Any]:
    """A grpo_core.lab.job.Job, without what the worker decides."""
    config: dict[str, Any] = {"kind": job.kind, "reward": job.spec or None, "options": job.options}
    if job.kind in OF_CONFIG:
        return {**config, "config": job.config}
    if job.dataset is not None:
        config["data"] = data_part(job.dataset)
    if job.base_model is not None:
        config["model"] = _model_part(job.base_model)
    if job.ground_truth is not None:
        config["verifier"] = job.ground_truth.spec
    if job.conversation is not None and job.conversation.reference is not None:
        config["reference"] = _model_part(job.conversation.reference)
    return {**config, "suites": job.suites}


def _model_part(model: BaseModel) -> dict[str, Any]:
    return {"path": model.path, "revision": model.revision or None}


def deadline(job: LabJob) -> timedelta:
    return RESCORE_DEADLINE if job.kind == JobKind.RESCORE else DEADLINE


def heartbeat_seconds(job: LabJob) -> float:
    """Between two beats of the job's worker."""
    every: float = settings.COHORT_HEARTBEAT_SECONDS
    return min(every, CHAT_BEAT_SECONDS) if job.kind == JobKind.CHAT else every


# ---------------------------------------------------------------------- beat and finish


@transaction.atomic
def job_beat(*, job: LabJob, beat: JobBeat) -> JobBeatReply:
    """Extend the lease, and take the answers of a chat; returns what the worker is to do. Raises StaleFence, and
    BadAnswer."""
    reported = {} if beat.progress is None else {"progress": beat.progress.model_dump(mode="json")}
    leases.extend(job, beat.fence, **reported)
    called_off = LabJob.objects.filter(pk=job.pk, cancel_asked=True).exists()
    reply = JobBeatReply(desired="cancel" if called_off else "run", lease_seconds=settings.COHORT_LEASE_SECONDS)
    if job.conversation is None:
        return reply
    turns.answers_store(job=job, answers=beat.answers)
    waiting = turns.pending_turns(job.conversation)
    close = turns.is_to_close(job, waiting=bool(waiting))
    return reply.model_copy(update={"turns": [] if close else waiting, "close": close})


@transaction.atomic
def job_finish(*, job: LabJob, finish: JobFinish) -> None:
    """End the job, or give it back. The same finish a second time changes nothing. A probe of a saved version is kept
    for good. Raises StaleFence, and BadResult for a result that is none."""
    state = JobState.CANCELLED if finish.end == "released" else JobState(finish.end)
    if leases.ended_as(job, finish.fence, state):
        return
    leases.lock(job, finish.fence, "project", "node", "conversation")
    more = finish.end == "done" and job.conversation is not None and bool(turns.unanswered(job.conversation))
    if (finish.end == "released" or more) and not job.cancel_asked:
        _requeue(job)
        return
    result = _checked(job, finish.result) if finish.end == "done" else None
    failed = finish.end == "failed"
    _over(
        job,
        state,
        result=_without_items(result),
        error_code=finish.code[:40] if failed else "",
        error=finish.message if failed else "",
        log_tail=finish.log_tail if failed else "",
        seconds=finish.seconds,
    )
    if result is not None:
        _require_size(job)
        if job.kind == JobKind.EVALUATE:
            evaluations_store(job=job, evaluation=ModelEvaluation.model_validate(result))
        if job.kind == JobKind.PROBE and job.version is not None:
            _keep_probe(job, result)


def _over(job: LabJob, state: JobState, **columns: Any) -> None:
    LabJob.objects.filter(pk=job.pk).update(state=state, lease_until=None, finished_at=Now(), **columns)
    turns.answers_give_up(job, columns.get("error") or turns.CALLED_OFF)


def _without_items(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """Those of an evaluation have rows of their own."""
    return None if result is None else {name: part for name, part in result.items() if name != "items"}


def _requeue(job: LabJob, **columns: Any) -> None:
    """Queue it for another worker; the token of this one becomes invalid."""
    LabJob.objects.filter(pk=job.pk).update(
        state=JobState.WAITING, token_digest="", lease_until=None, progress={}, **columns
    )
    job_on_commit(job=job)


_RESULTS: dict[
    str, type[ProbeReport | Estimate | Preview | Diagnosis | ModelEvaluation | ChatEnded | RescoreEnded | BestOfN]
] = {
    JobKind.PROBE: ProbeReport,
    JobKind.ESTIMATE: Estimate,
    JobKind.PREVIEW: Preview,
    JobKind.DOCTOR: Diagnosis,
    JobKind.EVALUATE: ModelEvaluation,
    JobKind.CHAT: ChatEnded,
    JobKind.RESCORE: RescoreEnded,
    JobKind.BEST_OF_N: BestOfN,
}


def _checked(job: LabJob, content: dict[str, Any] | None) -> dict[str, Any]:
    """Raises BadResult."""
    if content is None:
        raise BadResult("a job that is done has a result, and this one came without", code="no_result")
    try:
        result = _RESULTS.get(job.kind, LabResult).model_validate(storable_json(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(piece) for piece in first["loc"])
        raise BadResult(
            f"the result of a job of the kind {job.kind} is not valid: {where}: {first['msg']}", code="not_valid"
        ) from None
    match result:
        case Estimate() | Preview():
            what, digest, expected = "config", result.config_digest, job.config_digest
        case Diagnosis() | ModelEvaluation() | ChatEnded():
            assert job.base_model is not None
            what, digest, expected = "model", result.model, _model_part(job.base_model)["path"]
        case _:
            what, digest, expected = "reward", result.rubric_digest, job.spec_digest
    if digest != expected:
        raise BadResult(f"the result is of the {what} {digest}, and the job of {expected}", code=f"other_{what}")
    if isinstance(result, ModelEvaluation):
        _require_suites(job, result)
    if isinstance(result, BestOfN):
        _require_truth(job, result)
    content = result.model_dump(mode="json", by_alias=True)
    try:
        size = len(rfc8785.dumps(content))
    except rfc8785.CanonicalizationError as error:
        raise BadResult(f"the result holds what canonical JSON cannot: {error}", code="not_canonical") from None
    if size > MAX_RESULT_BYTES:
        raise BadResult(f"the result has {size:,} bytes; {MAX_RESULT_BYTES:,} are taken", code="too_large")
    return content


def _require_suites(job: LabJob, evaluation: ModelEvaluation) -> None:
    """Raises BadResult for an evaluation of other suites, or of other files, than the job's."""
    heldout = [] if job.dataset is None else [(HELDOUT, None)]
    wanted = [*heldout, *((suite["name"], suite["sha256"]) for suite in job.suites)]
    given = [(result.suite, result.protocol.get("file_sha256")) for result in evaluation.results]
    if given != wanted:
        names = ", ".join(name for name, _ in wanted)
        raise BadResult(f"the job evaluates {names}, and the result is of other suites or files", code="other_suites")


def _require_truth(job: LabJob, result: BestOfN) -> None:
    """Raises BadResult for a best-of-n of another verifier, or of another model, than the job's."""
    assert job.ground_truth is not None
    assert job.base_model is not None
    if result.verifier_digest != job.ground_truth.digest:
        raise BadResult("the result was scored by another verifier than the job's", code="other_verifier")
    if result.model != _model_part(job.base_model)["path"]:
        raise BadResult(f"the result is of the model {result.model}, not the job's", code="other_model")


def _require_size(job: LabJob) -> None:
    """Raises BadResult for a stored result that pages would read as far more than the worker sent: PostgreSQL writes
    each number out, 1e-300 in 302 characters."""
    text = Length(Cast("result", TextField()))
    size = LabJob.objects.filter(pk=job.pk).values_list(text, flat=True).get()
    if size > MAX_STORED_CHARS:
        raise BadResult(
            f"the result has {size:,} characters with its numbers written out; {MAX_STORED_CHARS:,} are taken",
            code="too_large",
        )


def _keep_probe(job: LabJob, report: dict[str, Any]) -> None:
    assert job.node is not None
    assert job.version is not None
    probe = VerifierProbe.objects.create(
        version=job.version,
        dataset=job.dataset,
        job=job,
        report=report,
        digest=hashlib.sha256(rfc8785.dumps(report)).hexdigest(),
        verdict=report["verdict"],
        pays_wrong=list(report["pays_wrong"]),
        by_id=job.created_by_id,
    )
    person = User.objects.values_list("username", flat=True).get(pk=job.created_by_id)
    audit.log(
        actor=f"node:{job.node.name}",
        kind="verifier_probed",
        subject=f"verifier:{job.version.verifier_id}",
        project=job.project,
        after={"verdict": probe.verdict, "pays_wrong": probe.pays_wrong, "digest": probe.digest},
        data={"version": job.version.number, "probe": probe.pk, "job": job.pk, "asked_by": person},
    )


# ---------------------------------------------------------------------- jobs that lose their worker


@transaction.atomic
def job_expire(job_id: int) -> int | None:
    """Take a job whose lease is over from its node. Returns its id; None when a beat or a finish came first."""
    job = leases.lock_expired(LabJob.objects.select_related("node"), job_id)
    if job is None:
        return None
    _lose(job)
    return job.pk


@transaction.atomic
def jobs_revoked(*, node: Node) -> None:
    """Take every job away from a node whose tokens were revoked, those of its jobs too."""
    for job in LabJob.objects.filter(leases.RUNNING, node=node).select_for_update(of=["self"]).select_related("node"):
        _lose(job)


def _lose(job: LabJob) -> None:
    """The locked job waits again; the second time it fails."""
    assert job.node is not None, "a node has it"
    if job.cancel_asked:
        _over(job, JobState.CANCELLED, token_digest="")
    elif job.error_code == LOST:
        message = (
            f"Its worker was lost twice, the last time on {job.node.name}. See that machine's memory and the log of "
            "its lab worker (docs/operations.md); then try again."
        )
        _over(job, JobState.FAILED, error=message, token_digest="", progress={})
    else:
        message = f"The worker on {job.node.name} sent no heartbeat any more; the job waits for another."
        _requeue(job, error_code=LOST, error=message)
    log.warning("the lab's job %s was lost on %s", job.pk, job.node.name)


def jobs_republish() -> list[int]:
    """Publish again the jobs that have waited for a while. Returns their ids."""
    waiting = LabJob.objects.filter(state=JobState.WAITING, created_at__lt=Now() - dispatch.UNCLAIMED)
    ids = waiting.order_by("pk").values_list("pk", flat=True)
    return dispatch.republish(LAB_JOB_TASK, dict.fromkeys(ids, LAB_QUEUE))
