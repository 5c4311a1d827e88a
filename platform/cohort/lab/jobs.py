"""What workers do to a job of the reward lab: claim one, beat, finish; and what becomes of one whose worker is gone.

Each write is bound to the job's fence. Times are the database's. A job is not a run: it is tried twice at most, leaves
no record, and its answer is checked here before it is stored, because a machine that runs untrusted code sent it.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import rfc8785
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac
from pydantic import ValidationError

import cohort
from cohort.audit import services as audit
from cohort.base.refusals import Refused
from cohort.base.storable import storable
from cohort.lab.dispatch import job_on_commit, publish
from cohort.lab.estimates import hindrance
from cohort.lab.models import JobKind, JobState, LabJob, VerifierProbe
from cohort.nodes.models import Node
from cohort.nodes.services import token_digest, token_new
from cohort.runs import schedule
from cohort.runs.attempts import NotWaiting, OtherVersion, StaleFence
from cohort.runs.dispatch import waiting_messages
from cohort.runs.models import Attempt, AttemptState
from grpo_core.lab.result import MAX_RESULT_BYTES, LabResult
from grpo_core.probe.report import ProbeReport
from grpo_core.protocol.messages import InputFile, JobBeat, JobFinish, NodeInfo
from grpo_core.protocol.queues import LAB_QUEUE
from grpo_core.records.estimate import Estimate
from grpo_core.sandbox.report import Report

DEADLINE = timedelta(hours=1)
"""A job that takes longer is ended by its worker."""
UNCLAIMED = timedelta(seconds=10)
"""A job that waits for longer may have lost its message."""
REPEATED = 30.0
"""Seconds between two messages for the same job."""
LOST = "worker_lost"

_published: dict[int, float] = {}
"""By job, when a message for it was last sent from here (monotonic)."""

log = logging.getLogger(__name__)


class BadResult(Refused):
    """What the worker sent is not what such a job finds. Nothing of it is stored."""

    code = "bad_result"


@dataclass(frozen=True)
class Given:
    job: LabJob
    token: str
    config: dict[str, Any]
    """A grpo_core.lab.job.Job, but for what the worker decides."""
    files: list[InputFile]


# ---------------------------------------------------------------------- claim


@transaction.atomic
def job_claim(*, job_id: int, node: Node, info: NodeInfo, claim_id: str = "") -> Given:
    """Give the node the job that has waited longest of those that it can do; `job_id` only says which message woke it.

    The same `claim_id` (unless it is empty) from the same node gets the same job and token again, for as long as the
    job is its: then the first answer was lost. Raises OtherVersion, NotWaiting.
    """
    theirs = info.versions.get("cohort-grpo", cohort.__version__)
    if theirs != cohort.__version__:
        raise OtherVersion(
            f"the worker on {node.name} is of version {theirs} and the platform of {cohort.__version__}; install "
            f"cohort-grpo=={cohort.__version__} there and start the worker again"
        )
    token, digest = _token(claim_id)
    before = _with_all().filter(node=node, state=JobState.RUNNING, token_digest=digest).first() if claim_id else None
    if before is not None:
        return Given(before, token, _config(before), job_files(before))
    if node.draining:
        raise NotWaiting(f"{node.name} is draining and takes no new job", code="draining")
    if info.refuses:
        raise NotWaiting(f"the worker on {node.name} takes no job now: {info.refuses}", code="worker_refuses")
    waiting = LabJob.objects.filter(state=JobState.WAITING)
    if not _keeps_apart(info):
        waiting = waiting.filter(needs_sandbox=False)
    waiting = waiting.exclude(pk__in=_not_measured_here(waiting, node, info))
    row = waiting.order_by("pk").select_for_update(skip_locked=True).values_list("pk", "fence").first()
    if row is None:
        raise NotWaiting(_why_none(job_id, node))
    pk, fence = row
    LabJob.objects.filter(pk=pk).update(
        state=JobState.RUNNING,
        node=node,
        token_digest=digest,
        fence=fence + 1,
        lease_until=Now() + _lease(),
        started_at=Now(),
        progress={},
    )
    job = _with_all().get(pk=pk)
    return Given(job, token, _config(job), job_files(job))


def _not_measured_here(waiting: QuerySet[LabJob], node: Node, info: NodeInfo) -> list[int]:
    """Estimates that this node cannot measure now: nothing else may train there meanwhile."""
    asked = list(waiting.filter(kind=JobKind.ESTIMATE).only("needs", "needs_sandbox"))
    if not asked:
        return []
    schedule.alone()  # no run is given to the node between this look and the claim
    told = Node(pk=node.pk, name=node.name, info=info.model_dump(mode="json"))
    busy = Attempt.objects.filter(node=node, state=AttemptState.RUNNING).exists()
    asking = schedule.seat(told, busy=busy)
    return [job.pk for job in asked if hindrance(job, asking)]


def _token(claim_id: str) -> tuple[str, str]:
    """The token and what is stored of it. One made of the claim's own random id is made again from it when the first
    answer was lost; nobody can make it without the platform's secret key."""
    if not claim_id:
        return token_new()
    token = salted_hmac("cohort.lab.claim", claim_id, algorithm="sha256").hexdigest()
    return token, token_digest(token)


def _keeps_apart(info: NodeInfo) -> bool:
    if info.sandbox_report is None:
        return False
    try:
        return Report.from_json(info.sandbox_report).works
    except ValueError:
        return False


def _why_none(job_id: int, node: Node) -> str:
    job = LabJob.objects.filter(pk=job_id).first()
    if job is None:
        return f"there is no job {job_id}, and no other waits for {node.name}"
    if job.state == JobState.WAITING and job.kind == JobKind.ESTIMATE:
        return f"job {job_id} measures a run, and {node.name} trains one now or is not the kind of node that it needs"
    if job.state == JobState.WAITING:
        return f"job {job_id} runs code that a person or a model wrote, and the sandbox of {node.name} does not work"
    return f"job {job_id} is {job.get_state_display()}, not waiting, and no other waits for {node.name}"


def _config(job: LabJob) -> dict[str, Any]:
    config: dict[str, Any] = {"kind": job.kind, "reward": job.spec, "options": job.options}
    if job.kind == JobKind.ESTIMATE:
        return {**config, "config": job.config}
    if job.dataset is not None:
        config["data"] = {"path": _path(job), "format": job.dataset.format}
    if job.base_model is not None:
        config["model"] = {"path": job.base_model.path, "revision": job.base_model.revision or None}
    return config


def job_files(job: LabJob) -> list[InputFile]:
    """What the job's worker may fetch."""
    if job.kind == JobKind.ESTIMATE:
        return [InputFile(path=one["path"], sha256=one["sha256"], size=one["size"]) for one in job.inputs]
    if job.dataset is None:
        return []
    return [InputFile(path=_path(job), sha256=job.dataset.sha256, size=job.dataset.size)]


def file_artifact(job: LabJob, sha256: str) -> tuple[str, int] | None:
    """Where the platform keeps one of the job's files, and its size; None for a file that is not one of them."""
    if job.kind == JobKind.ESTIMATE:
        return next(((one["artifact"], one["size"]) for one in job.inputs if one["sha256"] == sha256), None)
    if job.dataset is None or job.dataset.sha256 != sha256:
        return None
    return job.dataset.artifact, job.dataset.size


def _path(job: LabJob) -> str:
    assert job.dataset is not None
    return f"inputs/{job.dataset.sha256}.jsonl"


# ---------------------------------------------------------------------- beat and finish


def job_beat(*, job: LabJob, beat: JobBeat) -> bool:
    """Extend the lease; whether somebody has called the job off. Raises StaleFence.

    A lease that is over is extended as well, as long as nobody has taken the job away for it.
    """
    told = {} if beat.progress is None else {"progress": _stored(beat.progress.model_dump(mode="json"))}
    mine = LabJob.objects.filter(pk=job.pk, fence=beat.fence, state=JobState.RUNNING)
    if beat.fence != job.fence or not mine.update(lease_until=Now() + _lease(), **told):
        raise _stale(job)
    return LabJob.objects.filter(pk=job.pk, cancel_asked=True).exists()


@transaction.atomic
def job_finish(*, job: LabJob, finish: JobFinish) -> None:
    """End the job, or give it back. The same finish a second time changes nothing. A probe of a saved version is kept
    for good. Raises StaleFence, and BadResult for a result that is none."""
    locked = LabJob.objects.select_for_update(of=["self"]).select_related("project", "node").get(pk=job.pk)
    if finish.fence == job.fence == locked.fence and locked.state == _STATES.get(finish.end):
        return
    if not finish.fence == job.fence == locked.fence or locked.state != JobState.RUNNING:
        raise _stale(locked)
    if finish.end == "released" and not locked.cancel_asked:
        LabJob.objects.filter(pk=job.pk).update(state=JobState.WAITING, token_digest="", lease_until=None, progress={})
        job_on_commit(job=locked)
        return
    result = _checked(locked, finish.result) if finish.end == "done" else None
    failed = finish.end == "failed"
    LabJob.objects.filter(pk=job.pk).update(
        state=_STATES.get(finish.end, JobState.CANCELLED),
        result=result,
        error_code=storable(finish.code)[:40] if failed else "",
        error=storable(finish.message) if failed else "",
        log_tail=storable(finish.log_tail) if failed else "",
        seconds=finish.seconds,
        lease_until=None,
        finished_at=Now(),
    )
    if result is not None and locked.kind == JobKind.PROBE and locked.version is not None:
        _keep_probe(locked, result)


_STATES = {"done": JobState.DONE, "failed": JobState.FAILED, "cancelled": JobState.CANCELLED}


def _checked(job: LabJob, told: dict[str, Any] | None) -> dict[str, Any]:
    """Raises BadResult."""
    if told is None:
        raise BadResult("a job that is done has a result, and this one came without", code="no_result")
    result: dict[str, Any] = _stored(told)
    try:
        if job.kind == JobKind.PROBE:
            found: ProbeReport | LabResult | Estimate = ProbeReport.from_json(result)
        elif job.kind == JobKind.ESTIMATE:
            found = Estimate.model_validate(result)
        else:
            found = LabResult.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(piece) for piece in first["loc"])
        raise BadResult(
            f"the result of a job of the kind {job.kind} is not valid: {where}: {first['msg']}", code="not_valid"
        ) from None
    if isinstance(found, Estimate):
        if found.config_digest != job.config_digest:
            raise BadResult(
                f"the result is of the config {found.config_digest}, and the job of {job.config_digest}",
                code="other_config",
            )
    elif found.rubric_digest != job.spec_digest:
        raise BadResult(
            f"the result is of the reward {found.rubric_digest}, and the job of {job.spec_digest}", code="other_reward"
        )
    content = found.model_dump(mode="json", by_alias=True)
    try:
        size = len(rfc8785.dumps(content))
    except rfc8785.CanonicalizationError as error:
        raise BadResult(f"the result holds what canonical JSON cannot: {error}", code="not_canonical") from None
    if size > MAX_RESULT_BYTES:
        raise BadResult(f"the result has {size:,} bytes; {MAX_RESULT_BYTES:,} are taken", code="too_large")
    return content


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
        by=job.created_by,
    )
    audit.log(
        actor=f"node:{job.node.name}",
        kind="verifier_probed",
        subject=f"verifier:{job.version.verifier_id}",
        project=job.project,
        after={"verdict": probe.verdict, "pays_wrong": probe.pays_wrong, "digest": probe.digest},
        data={"version": job.version.number, "probe": probe.pk, "job": job.pk, "asked_by": job.created_by.username},
    )


def _stored(content: Any) -> Any:
    """PostgreSQL holds neither NUL nor half a surrogate pair: each becomes the visible U+FFFD."""
    match content:
        case str():
            return storable(content)
        case list():
            return [_stored(item) for item in content]
        case dict():
            return {storable(str(key)): _stored(value) for key, value in content.items()}
        case _:
            return content


def _stale(job: LabJob) -> StaleFence:
    now = LabJob.objects.only("state", "fence").get(pk=job.pk)
    return StaleFence(f"job {job.pk} is {now.get_state_display()} at fence {now.fence}; this call came with another")


# ---------------------------------------------------------------------- what the reconciler does


def jobs_expire() -> list[int]:
    """Jobs whose lease is over wait again, the second time they fail. Returns their ids."""
    running = LabJob.objects.filter(state=JobState.RUNNING)
    running.filter(lease_until__gt=Now() + 2 * _lease()).update(lease_until=Now() + _lease())  # the clock was set back
    expired = LabJob.objects.filter(state=JobState.RUNNING, lease_until__lt=Now())
    return [pk for pk in list(expired.values_list("pk", flat=True)) if _lose(pk, Q(lease_until__lt=Now()))]


@transaction.atomic
def jobs_revoked(*, node: Node) -> None:
    """Take every job away from a node whose tokens were revoked, those of its jobs too."""
    for pk in LabJob.objects.filter(node=node, state=JobState.RUNNING).values_list("pk", flat=True):
        _lose(pk, Q(node=node))


@transaction.atomic
def _lose(pk: int, still: Q) -> bool:
    """False when a beat or a finish came first."""
    job = LabJob.objects.select_for_update(of=["self"]).filter(still, pk=pk, state=JobState.RUNNING).first()
    if job is None:
        return False
    where = job.node.name if job.node is not None else "its node"
    rows = LabJob.objects.filter(pk=pk)
    if job.cancel_asked:
        rows.update(state=JobState.CANCELLED, token_digest="", lease_until=None, finished_at=Now())
    elif job.error_code == LOST:
        message = (
            f"Its worker was lost twice, the last time on {where}. See that machine's memory and the log of its lab "
            "worker (docs/operations.md); then try again."
        )
        rows.update(
            state=JobState.FAILED, error=message, token_digest="", lease_until=None, finished_at=Now(), progress={}
        )
    else:
        message = f"The worker on {where} was not heard of any more; the job waits for another."
        rows.update(
            state=JobState.WAITING, error_code=LOST, error=message, token_digest="", lease_until=None, progress={}
        )
        job_on_commit(job=job)
    log.warning("the lab's job %s was lost on %s", pk, where)
    return True


def jobs_republish(clock: Callable[[], float] = time.monotonic) -> list[int]:
    """Publish again the jobs that have waited for a while; a doubled message finds nothing to claim. Returns their
    ids."""
    waiting = LabJob.objects.filter(state=JobState.WAITING, created_at__lt=Now() - UNCLAIMED)
    ids = list(waiting.order_by("pk").values_list("pk", flat=True))
    for gone in _published.keys() - set(ids):
        _published.pop(gone)
    now = clock()
    due = [pk for pk in ids if now - _published.get(pk, float("-inf")) >= REPEATED]
    if due and waiting_messages(LAB_QUEUE) != 0:
        return []  # nobody has taken the last ones yet, or the broker cannot be asked
    for pk in due:
        _published[pk] = now
        publish(pk)
    return due


def _with_all() -> Any:
    return LabJob.objects.select_related("dataset", "base_model", "node")


def _lease() -> timedelta:
    return timedelta(seconds=settings.COHORT_LEASE_SECONDS)
