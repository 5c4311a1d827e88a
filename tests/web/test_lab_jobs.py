"""Jobs of the reward lab: who may ask for what, who may take one, what its token opens, and how they end, as
docs/worker-protocol.md promises.
"""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.background.outages import leases_capped
from cohort.background.reconcile import jobs_lost
from cohort.background.revoke import node_revoke
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.lab import jobs
from cohort.lab.jobs import jobs_republish
from cohort.lab.models import JobState, LabJob, VerifierProbe
from cohort.lab.services import JobOver, job_cancel, job_request
from cohort.nodes.models import Draining, Node
from cohort.nodes.services import node_create, node_drain, node_present, node_rotate, token_digest
from cohort.runs import dispatch
from cohort.web.lab.estimate_shown import why_waits
from grpo_core.config.reward import RewardConfig
from grpo_core.errors import ConfigError
from grpo_core.lab.job import Job
from grpo_core.lab.result import MAX_RESULT_BYTES, LabSample, result_of
from grpo_core.probe.cases.problems import problems_builtin
from grpo_core.probe.run import probe_rubric
from grpo_core.protocol.queues import LAB_QUEUE
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import Rubric, Runner
from tests.factories.sandbox_reports import BROKEN, WORKS, node_info
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.conftest import PROBLEMS, R1_EXACT
from tests.web.control import fresh, stop_clock
from tests.web.worker_calls import Caller, JobCaller, refused
from tests.web.worker_calls import claim_job as claim
from tests.web.worker_calls import taken_job as taken
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db

RIGHT = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
PYTHON = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": "2"}]}
SAMPLING = {"problems": 4, "group_size": 2}


@pytest.fixture
def ask(ours: Project, alice: User) -> Callable[..., LabJob]:
    """Asks for a job: a try of RIGHT on one text, unless something else is given."""

    def asked(kind: Any = "try", options: dict[str, Any] = TEXTS, **more: Any) -> LabJob:
        given = {"spec": RIGHT} if "version" not in more and "spec" not in more else {}
        return job_request(**{"project": ours, "actor": alice, "kind": kind, "options": options, **given, **more})

    return asked


def expire() -> None:
    """The leases of all jobs are over."""
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))


def result(spec: dict[str, Any] = RIGHT, *, completion: str = "2", count: int = 1) -> dict[str, Any]:
    rubric = Rubric(RewardConfig.model_validate(spec))
    sample = LabSample(
        problem_id="text-1",
        prompt="1+1",
        answer="2",
        completion=completion,
        reward=1.0,
        components={"right": ComponentScore(value=1.0, passed=True)},
        group=0,
    )
    made = result_of(
        kind="try", rubric_digest=rubric.digest, reward=rubric.config, samples=[sample] * count, seconds=0.5
    )
    return made.model_dump(mode="json", by_alias=True)


def faults(make: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        make()
    return [problem.path for problem in error.value.problems]


Ask = Callable[..., LabJob]


# ---------------------------------------------------------------------- asking


def test_what_is_asked_for_waits_and_is_logged_and_told(ask: Ask, committed: Any) -> None:
    take_all(LAB_QUEUE)
    with committed():
        job = ask()
    assert (job.state, job.kind, job.version) == (JobState.WAITING, "try", None)
    assert job.spec_digest == Rubric(RewardConfig.model_validate(RIGHT)).digest
    entry = AuditEntry.objects.get(kind="lab_job_asked")
    assert (entry.actor, entry.subject, entry.project) == ("user:alice", f"lab_job:{job.pk}", "ours")
    assert take_all(LAB_QUEUE) == [[job.pk]]


def test_faults_name_fields(
    ask: Ask, dataset: PromptDataset, base_model: BaseModel, charlie: User, alice: User
) -> None:
    wrong = copy.deepcopy(RIGHT)
    wrong["components"][0]["params"] = {"extract": "nowhere"}
    assert faults(lambda: ask(spec=wrong)) == ["components.0.params.extract"]
    assert faults(lambda: ask(options={"texts": [], "rows": 0})) == ["options"]
    assert faults(lambda: ask(options={"texts": [{"completion": 3}]})) == ["options.texts.0.completion"]
    assert faults(lambda: ask(options={"rows": 5})) == ["dataset"]
    assert faults(lambda: ask("sample", SAMPLING)) == ["dataset", "base_model"]
    many = {"problems": 256, "group_size": 64}
    assert faults(lambda: ask("sample", many, dataset=dataset, base_model=base_model)) == ["options"]
    theirs = charlie.memberships.get().project
    assert faults(lambda: ask(project=theirs, options={"rows": 2}, dataset=dataset)) == ["dataset"]
    node_present(node=node_create(name="gpu-9")[0], info=node_info(WORKS))
    reads_tests = copy.deepcopy(PYTHON)
    reads_tests["components"][0]["params"]["columns"] = ["tests"]  # type: ignore[index]
    dataset.columns = {"level": 20}
    assert faults(lambda: ask(options={"rows": 2}, spec=reads_tests, dataset=dataset)) == ["dataset"]
    with pytest.raises(ValueError, match="either a spec or a version"):
        ask(spec=None)
    assert not LabJob.objects.exists()
    dataset.columns = {"tests": 20}
    first = ask(options={"rows": 2}, spec=reads_tests, dataset=dataset)
    for _ in range(settings.COHORT_MAX_OPEN_JOBS - 1):
        ask()
    with pytest.raises(ConfigError, match="at most 20"):
        ask()
    job_cancel(job=first, actor=alice)
    ask()


def test_code_is_tried_only_where_a_sandbox_works(ask: Ask, node: Caller) -> None:
    row = Node.objects.get()
    assert faults(lambda: ask(spec=PYTHON)) == ["reward"]
    node_present(node=row, info=node_info(BROKEN))
    with pytest.raises(ConfigError) as error:
        ask(spec=PYTHON)
    assert "apparmor_restrict_unprivileged_userns=0" in error.value.problems[0].message, "the fix is told"
    node_present(node=row, info=node_info(WORKS))
    job = ask(spec=PYTHON)
    assert job.needs_sandbox
    for info in (node_info(BROKEN), node_info(None), node_info({"level": "perfect"})):
        assert refused(claim(node, job_id=job.pk, info=info)) == (409, "not_waiting")
    plain = ask()
    assert taken(node, info=node_info(BROKEN)).job_id == plain.pk, "what needs none is not held up"
    stranger = Caller(node_create(name="gpu-2")[1])
    assert taken(stranger, info=node_info(WORKS)).job_id == job.pk


# ---------------------------------------------------------------------- claim


def test_a_claim_gives_what_the_job_needs(
    ask: Ask, node: Caller, dataset: PromptDataset, base_model: BaseModel
) -> None:
    job = ask("sample", SAMPLING, dataset=dataset, base_model=base_model)
    given = taken(node)
    assert (given.job_id, given.fence, given.lease_seconds, given.deadline_seconds) == (job.pk, 1, 60, 3600)
    read = Job.model_validate(given.job)
    assert read.model is not None
    assert read.data is not None
    assert (read.kind, read.model.path, read.data.path) == ("sample", base_model.path, given.files[0].path)
    assert read.device == "cpu", "the worker's to say"
    assert (fresh(job).state, job.node, job.token_digest) == (
        JobState.RUNNING,
        Node.objects.get(),
        token_digest(given.token),
    )
    assert job.lease_until - job.started_at == timedelta(seconds=60)  # type: ignore[operator]
    worker = JobCaller(given)
    fetched = worker.get(f"{worker.at}/files/{dataset.sha256}")
    assert b"".join(fetched.streaming_content) == PROBLEMS
    assert refused(worker.get(f"{worker.at}/files/{'0' * 64}")) == (404, "unknown_file")
    assert refused(claim(node)) == (409, "not_waiting"), "a doubled message finds nothing"


def test_a_claim_whose_answer_was_lost_gives_the_same_job(ask: Ask, node: Caller) -> None:
    ask()
    second = ask()
    first, again = taken(node, claim_id="c" * 32), taken(node, claim_id="c" * 32)
    assert first.model_dump(exclude={"token"}) == again.model_dump(exclude={"token"})
    assert refused(JobCaller(first).beat()) == (401, "unknown_token"), "the token of the lost answer opens nothing"
    assert JobCaller(again).beat().status_code == 200
    assert refused(claim(node, claim_id="d" * 32)) == (409, "not_waiting"), "one at a time"
    stranger = Caller(node_create(name="gpu-2")[1])
    assert taken(stranger, claim_id="c" * 32).job_id == second.pk, "another node's id is its own"
    assert JobCaller(again).finish("cancelled").status_code == 204
    assert refused(claim(node, claim_id="c" * 32)) == (409, "not_waiting"), "it has beaten"


def test_who_may_take_no_job(ask: Ask, node: Caller, alice: User) -> None:
    ask()
    other = NODE.model_copy(update={"versions": {"cohort-grpo": "0.0.9"}})
    assert refused(claim(node, info=other)) == (409, "other_version")
    full = NODE.model_copy(update={"refuses": "the disk is full"})
    assert refused(claim(node, info=full)) == (409, "not_waiting")
    node_drain(node=Node.objects.get(), actor=alice, how=Draining.FINISH)
    assert refused(claim(node)) == (409, "not_waiting")


# ---------------------------------------------------------------------- tokens and fences


def test_a_stale_fence_writes_nothing(ask: Ask, node: Caller) -> None:
    job = ask()
    first = JobCaller(taken(node))
    assert refused(first.beat(fence=2)) == (409, "stale_fence")
    expire()
    assert first.beat().status_code == 200, "late, but nobody has taken it away yet"
    LabJob.objects.update(lease_until=Now() + timedelta(days=1))  # as before the clock was set back
    assert (leases_capped(), jobs_lost()) == (1, [])
    assert LabJob.objects.filter(lease_until__lt=Now() + timedelta(seconds=61)).exists(), "no longer than any"
    expire()
    assert jobs_lost() == [job.pk]
    second = JobCaller(taken(node))
    assert second.fence == 2
    for call in (first.beat(), first.finish("done", result=result())):
        assert refused(call) == (401, "unknown_token")
    assert refused(second.finish("done", fence=1, result=result())) == (409, "stale_fence")
    assert (fresh(job).state, job.result) == (JobState.RUNNING, None)
    assert second.finish("done", result=result()).status_code == 204
    assert refused(second.beat()) == (409, "stale_fence")
    assert refused(second.finish("failed", code="x")) == (409, "stale_fence")
    assert (fresh(job).state, job.error_code, job.error, job.seconds) == (JobState.DONE, "", "", 1.5)
    finished_at = job.finished_at
    assert second.finish("done", result=result(completion="another")).status_code == 204, "the answer was lost"
    assert (fresh(job).finished_at, (job.result or {})["samples"][0]["completion"]) == (finished_at, "2")


def test_a_revoked_node_loses_its_job_for_good(ask: Ask, node: Caller, alice: User) -> None:
    job, worker, row = ask(), JobCaller(taken(node)), Node.objects.get()
    node_revoke(node=row, actor=alice)
    assert fresh(job).state == JobState.WAITING
    assert refused(worker.beat()) == (401, "unknown_token")
    node_rotate(node=row, actor=alice)
    assert refused(worker.beat()) == (401, "unknown_token"), "let in again, the old token stays dead"


# ---------------------------------------------------------------------- the end


def test_progress_and_a_cancel_come_with_beats(ask: Ask, node: Caller, alice: User) -> None:
    job, worker = ask(), JobCaller(taken(node))
    progress = {"phase": "scoring", "done": 3, "total": 9}
    assert worker.beat(progress=progress).json()["desired"] == "run"
    assert fresh(job).progress == progress
    for _ in range(2):
        job_cancel(job=job, actor=alice)
    assert job.state == JobState.RUNNING
    assert worker.beat().json()["desired"] == "cancel"
    assert worker.finish("cancelled").status_code == 204
    assert fresh(job).state == JobState.CANCELLED
    assert AuditEntry.objects.filter(kind="lab_job_cancelled").count() == 1
    with pytest.raises(JobOver):
        job_cancel(job=job, actor=alice)


def test_an_end_is_kept_with_what_cannot_be_stored_replaced_and_within_bounds(ask: Ask, node: Caller) -> None:
    job, worker = ask(), JobCaller(taken(node))
    end = {"code": "model_error", "message": "no such\x00 model", "log_tail": "last\x00 line"}
    assert worker.finish("failed", **end).status_code == 204
    assert (fresh(job).state, job.error_code) == (JobState.FAILED, "model_error")
    assert (job.error, job.log_tail) == ("no such\ufffd model", "last\ufffd line")
    other, worker = ask(), JobCaller(taken(node))
    for count, answer in ((9, (422, "bad_result")), (40, (413, "too_large"))):
        large = result(completion="x" * (MAX_RESULT_BYTES // 8), count=count)
        assert refused(worker.finish("done", result=large)) == answer
    assert fresh(other).result is None
    completion = "a\x00b\ud800c" + "x" * 1_000_000
    assert worker.finish("done", result=result(completion=completion)).status_code == 204
    assert (fresh(other).result or {})["samples"][0]["completion"].startswith("a\ufffdb\ufffdcx")


def test_a_called_off_job_that_waits_is_lost_or_is_given_back_is_over(ask: Ask, node: Caller, alice: User) -> None:
    lost, released, waiting = ask(), ask(), ask()
    workers = [JobCaller(taken(caller)) for caller in (node, Caller(node_create(name="gpu-2")[1]))]
    for job in (lost, released, waiting):
        job_cancel(job=job, actor=alice)
    assert refused(claim(node)) == (409, "not_waiting")
    assert workers[1].finish("released").status_code == 204
    expire()
    assert jobs_lost() == [lost.pk]
    assert {job.state for job in LabJob.objects.all()} == {JobState.CANCELLED}


SMALL = pytest.param(None, {"histogram": {"edges": [1e-300] * 60_000, "counts": []}}, "numbers written out", id="small")


@pytest.mark.parametrize(("sent", "changed", "words"), [*cases("lab/bad_results", "sent", "changed", "words"), SMALL])
def test_what_is_no_result_is_refused_and_not_stored(
    ask: Ask, node: Caller, sent: Any, changed: Any, words: str | None
) -> None:
    job, worker = ask(), JobCaller(taken(node))
    reply = worker.finish("done", result={**result(), **changed} if changed else sent)
    assert refused(reply) == (422, "bad_result")
    assert (words or "") in reply.json()["message"]
    assert (fresh(job).state, job.result) == (JobState.RUNNING, None)
    assert worker.finish("failed", code="bad_result", message="so").status_code == 204


# ---------------------------------------------------------------------- probes


def probed(spec: dict[str, Any]) -> dict[str, Any]:
    rubric = Rubric(RewardConfig.model_validate(spec))
    with Runner(rubric) as runner:
        return probe_rubric(rubric, list(problems_builtin(rubric)), runner=runner, limit=2, source="builtin").to_json()


def test_a_probe_is_kept_of_a_version_not_of_a_draft(ask: Ask, node: Caller, verifier_version: VerifierVersion) -> None:
    draft = ask("probe", {"problems": 2}, spec=R1_EXACT)
    report = probed(R1_EXACT)
    assert JobCaller(taken(node)).finish("done", result=report).status_code == 204
    assert fresh(draft).state == JobState.DONE
    assert not VerifierProbe.objects.exists()
    job = ask("probe", {"problems": 2}, version=verifier_version)
    worker = JobCaller(taken(node))
    for other in (result(), probed(RIGHT)):
        assert refused(worker.finish("done", result=other)) == (422, "bad_result"), "no report, or of another reward"
    for _ in range(2):
        assert worker.finish("done", result=report).status_code == 204
    kept = VerifierProbe.objects.get()
    assert (kept.version, kept.job, kept.dataset, kept.by) == (verifier_version, job, None, job.created_by)
    assert (kept.verdict, kept.pays_wrong) == (report["verdict"], report["pays_wrong"])
    entry = AuditEntry.objects.get(kind="verifier_probed")
    assert (entry.actor, entry.subject) == ("node:gpu-1", f"verifier:{verifier_version.verifier_id}")


# ---------------------------------------------------------------------- the reconciler


def test_lost_once_it_waits_again_lost_twice_it_fails(ask: Ask, node: Caller, committed: Any) -> None:
    job = ask()
    take_all(LAB_QUEUE)
    taken(node)
    expire()
    with committed():
        assert jobs_lost() == [job.pk]
    assert take_all(LAB_QUEUE) == [[job.pk]]
    assert (fresh(job).state, job.error_code) == (JobState.WAITING, "worker_lost")
    assert JobCaller(taken(node)).finish("released").status_code == 204, "a worker that is shut down loses nothing"
    taken(node)
    expire()
    assert jobs_lost() == [job.pk]
    assert (fresh(job).state, job.error_code) == (JobState.FAILED, "worker_lost")
    assert "lost twice, the last time on gpu-1" in job.error


def test_what_waits_long_is_told_again_but_never_on_top_of_a_message(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_published", {})
    moment, clock = stop_clock(monkeypatch, jobs), [1000.0]
    monkeypatch.setattr("cohort.runs.dispatch.time.monotonic", lambda: clock[0])
    both = [ask().pk, ask().pk]
    take_all(LAB_QUEUE)
    LabJob.objects.update(created_at=moment - timedelta(seconds=9))
    assert jobs_republish() == [], "they wait for a moment only"
    LabJob.objects.update(created_at=moment - timedelta(seconds=11))
    assert jobs_republish() == both
    clock[0] += 29
    assert jobs_republish() == []
    clock[0] += 2
    assert jobs_republish() == [], "their messages lie there still"
    assert sorted(take_all(LAB_QUEUE)) == [[pk] for pk in both], "within one millisecond their order is open"
    clock[0] += 31
    assert jobs_republish() == both
    take_all(LAB_QUEUE)


def test_why_it_waits(ask: Ask, node: Caller, alice: User) -> None:
    first = ask()
    assert "no node is here" in why_waits(first)
    row = Node.objects.get()
    node_present(node=row, info=node_info(WORKS))
    assert "within seconds" in why_waits(first)
    code = ask(spec=PYTHON)
    assert why_waits(code).startswith("1 other before it")
    LabJob.objects.filter(pk=first.pk).update(created_at=Now() - timedelta(minutes=1))
    assert "worker --queues lab" in why_waits(first)
    taken(node)
    assert why_waits(code).startswith("the lab's workers do 1 other")
    node_present(node=row, info=node_info(BROKEN))
    assert "gpu-1: Ubuntu's AppArmor" in why_waits(code)
    node_drain(node=row, actor=alice, how=Draining.FINISH)
    assert why_waits(fresh(first)) == "", "it runs"
    assert "draining" in why_waits(ask())
