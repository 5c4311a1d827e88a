"""Jobs of the reward lab: who may ask for what, who may take one, and what its token opens, as docs/worker-protocol.md
promises."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.accounts.services import project_create
from cohort.audit.models import AuditEntry
from cohort.catalog.models import BaseModel, PromptDataset
from cohort.lab.models import JobState, LabJob
from cohort.lab.services import MAX_OPEN, job_cancel, jobs_expire
from cohort.runs.models import Draining, Node
from cohort.runs.nodes import node_create, node_drain, node_present, node_rotate, token_digest
from cohort.runs.revoke import node_revoke
from grpo_core.broker import LAB_QUEUE
from grpo_core.config_reward import RewardConfig
from grpo_core.errors import ConfigError
from grpo_core.lab.job import Job
from grpo_core.rewards import Rubric
from tests.web.conftest import PROBLEMS
from tests.web.lab_calls import PYTHON, RIGHT, SAMPLING, JobCaller, asking, claim, faults, result, taken
from tests.web.sandbox_reports import BROKEN, WORKS, node_info
from tests.web.worker_calls import API, Caller, refused
from tests.worker.making import NODE
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(db: None) -> Caller:
    return Caller(node_create(name="gpu-1")[1])


@pytest.fixture
def ask(ours: Project, alice: User) -> Callable[..., LabJob]:
    return asking(ours, alice)


# ---------------------------------------------------------------------- asking


def test_what_is_asked_for_waits_and_is_logged_and_told(
    ask: Callable[..., LabJob], django_capture_on_commit_callbacks: Any
) -> None:
    take_all(LAB_QUEUE)
    with django_capture_on_commit_callbacks(execute=True):
        job = ask()
    assert (job.state, job.kind, job.version) == (JobState.WAITING, "try", None)
    assert job.spec_digest == Rubric(RewardConfig.model_validate(RIGHT)).digest
    entry = AuditEntry.objects.get(kind="lab_job_asked")
    assert (entry.actor, entry.subject, entry.project) == ("user:alice", f"lab_job:{job.pk}", "ours")
    assert take_all(LAB_QUEUE) == [[job.pk]]


def test_faults_are_told_at_their_fields(
    ask: Callable[..., LabJob], dataset: PromptDataset, base_model: BaseModel, alice: User
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
    foreign = project_create(slug="other", name="Other", owner=alice)
    assert faults(lambda: ask(project=foreign, options={"rows": 2}, dataset=dataset)) == ["dataset"]
    with pytest.raises(ValueError, match="either a spec or a version"):
        ask(spec=None)
    assert not LabJob.objects.exists()


def test_a_dataset_without_the_field_that_the_reward_reads(ask: Callable[..., LabJob], dataset: PromptDataset) -> None:
    spec = copy.deepcopy(PYTHON)
    spec["components"][0]["params"]["columns"] = ["tests"]  # type: ignore[index]
    node_present(node=node_create(name="gpu-9")[0], info=node_info(WORKS))
    PromptDataset.objects.update(columns={"level": 20})
    dataset.refresh_from_db()
    assert faults(lambda: ask(options={"rows": 2}, spec=spec, dataset=dataset)) == ["dataset"]
    PromptDataset.objects.update(columns={"tests": 20})
    dataset.refresh_from_db()
    ask(options={"rows": 2}, spec=spec, dataset=dataset)


def test_not_more_than_twenty_at_once(ask: Callable[..., LabJob], alice: User) -> None:
    first, *_ = [ask() for _ in range(MAX_OPEN)]
    with pytest.raises(ConfigError, match="which is the most"):
        ask()
    job_cancel(job=first, actor=alice)
    ask()


def test_code_is_tried_only_where_a_sandbox_works(ask: Callable[..., LabJob], node: Caller) -> None:
    row = Node.objects.get()
    with pytest.raises(ConfigError) as error:
        ask(spec=PYTHON)
    assert "gpu-1: its worker has not said" in str(error.value.problems[0])
    node_present(node=row, info=node_info(BROKEN))
    with pytest.raises(ConfigError) as error:
        ask(spec=PYTHON)
    assert "apparmor_restrict_unprivileged_userns=0" in error.value.problems[0].message
    node_present(node=row, info=node_info(WORKS))
    job = ask(spec=PYTHON)
    assert job.needs_sandbox
    for info in (node_info(BROKEN), node_info(None), node_info({"level": "perfect"})):
        answer = claim(node, job_id=job.pk, info=info)
        assert refused(answer) == (409, "not_waiting")
        assert "sandbox of gpu-1 does not work" in answer.json()["message"]
    plain = ask()
    assert taken(node, info=node_info(BROKEN)).job_id == plain.pk, "what needs none is not held up"
    assert taken(node, info=node_info(WORKS)).job_id == job.pk


# ---------------------------------------------------------------------- claim


def test_a_claim_gives_all_that_the_job_needs(
    ask: Callable[..., LabJob], node: Caller, dataset: PromptDataset, base_model: BaseModel
) -> None:
    job = ask("sample", SAMPLING, dataset=dataset, base_model=base_model)
    given = taken(node)
    assert (given.job_id, given.fence, given.lease_seconds, given.deadline_seconds) == (job.pk, 1, 60, 3600)
    read = Job.model_validate(given.job)
    assert read.model is not None
    assert read.data is not None
    assert (read.kind, read.model.path, read.data.path) == ("sample", base_model.path, given.files[0].path)
    assert read.device == "cpu", "the worker's to say"
    job.refresh_from_db()
    assert (job.state, job.node, job.token_digest) == (JobState.RUNNING, Node.objects.get(), token_digest(given.token))
    assert job.lease_until is not None
    assert job.started_at is not None
    assert job.lease_until - job.started_at == timedelta(seconds=60)
    fetched = JobCaller(given).get(f"jobs/{job.pk}/files/{dataset.sha256}")
    assert b"".join(fetched.streaming_content) == PROBLEMS
    assert refused(JobCaller(given).get(f"jobs/{job.pk}/files/{'0' * 64}")) == (404, "unknown_file")
    assert refused(claim(node)) == (409, "not_waiting"), "a doubled message finds nothing"


def test_a_claim_whose_answer_was_lost_gives_the_same_job(ask: Callable[..., LabJob], node: Caller) -> None:
    ask()
    second = ask()
    first = taken(node, claim_id="c" * 32)
    again = taken(node, claim_id="c" * 32)
    assert (again.job_id, again.fence, again.token) == (first.job_id, first.fence, first.token)
    assert JobCaller(again).beat().status_code == 200
    assert taken(node, claim_id="d" * 32).job_id == second.pk
    stranger = Caller(node_create(name="gpu-2")[1])
    assert refused(claim(stranger, claim_id="c" * 32)) == (409, "not_waiting"), "another node's id is its own"


def test_who_may_take_no_job(ask: Callable[..., LabJob], node: Caller, alice: User) -> None:
    ask()
    assert refused(Caller("nonsense").post("jobs/claim", {})) == (401, "unknown_token")
    other = NODE.model_copy(update={"versions": {"cohort-grpo": "0.0.9"}})
    assert refused(claim(node, info=other)) == (409, "other_version")
    full = NODE.model_copy(update={"refuses": "the disk is full"})
    assert refused(claim(node, info=full)) == (409, "not_waiting")
    node_drain(node=Node.objects.get(), actor=alice, how=Draining.FINISH)
    assert refused(claim(node)) == (409, "not_waiting")
    assert refused(claim(node, job_id=10**6)) == (409, "not_waiting")
    assert refused(node.post("jobs/claim", {"job_id": "x"})) == (422, "bad_request")


# ---------------------------------------------------------------------- tokens and fences


def test_a_jobs_token_opens_that_job_alone(ask: Callable[..., LabJob], node: Caller, dataset: PromptDataset) -> None:
    ask(options={"rows": 2}, dataset=dataset)
    ask(options={"rows": 2}, dataset=dataset)
    one, two = taken(node), taken(node)
    mine = JobCaller(one)
    for call in (
        mine.post(f"jobs/{two.job_id}/heartbeat", {"fence": 1}),
        mine.post(f"jobs/{two.job_id}/finish", {"fence": 1, "end": "cancelled"}),
        mine.get(f"jobs/{two.job_id}/files/{dataset.sha256}"),
        mine.post("jobs/claim", {"job_id": 1, "node": NODE.model_dump(mode="json")}),
        mine.post("node", NODE.model_dump(mode="json")),
        mine.post("claim", {"run_id": 1, "node": NODE.model_dump(mode="json")}),
        mine.post(f"attempts/{one.job_id}/heartbeat", {"fence": 1}),
        node.post(f"jobs/{one.job_id}/heartbeat", {"fence": 1}),
        Client().post(f"{API}/jobs/{one.job_id}/heartbeat", {"fence": 1}, content_type="application/json"),
    ):
        assert refused(call) == (401, "unknown_token")
    assert LabJob.objects.filter(state=JobState.RUNNING).count() == 2
    assert mine.beat().status_code == 200


def test_a_stale_fence_writes_nothing(ask: Callable[..., LabJob], node: Caller) -> None:
    job = ask()
    first = JobCaller(taken(node))
    assert refused(first.beat(fence=2)) == (409, "stale_fence")
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert first.beat().status_code == 200, "late, but nobody has taken it away yet"
    assert jobs_expire() == []
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert jobs_expire() == [job.pk]
    assert refused(first.beat()) == (401, "unknown_token")
    second = JobCaller(taken(node))
    assert second.fence == 2
    for call in (first.beat(), first.finish("done", result=result())):
        assert refused(call) == (401, "unknown_token")
    assert refused(second.finish("done", fence=1, result=result())) == (409, "stale_fence")
    job.refresh_from_db()
    assert (job.state, job.result) == (JobState.RUNNING, None)
    assert second.finish("done", result=result()).status_code == 204
    assert refused(second.beat()) == (409, "stale_fence")
    assert refused(second.finish("failed", code="x")) == (409, "stale_fence")
    job.refresh_from_db()
    assert (job.state, job.error_code, job.error, job.seconds) == (JobState.DONE, "", "", 1.5)


def test_a_finish_whose_answer_was_lost_changes_nothing(ask: Callable[..., LabJob], node: Caller) -> None:
    job = ask()
    worker = JobCaller(taken(node))
    assert worker.finish("done", result=result()).status_code == 204
    job.refresh_from_db()
    before = job.finished_at
    assert worker.finish("done", result=result(completion="another")).status_code == 204
    job.refresh_from_db()
    assert (job.finished_at, (job.result or {})["samples"][0]["completion"]) == (before, "2")


def test_a_revoked_node_loses_its_job_for_good(ask: Callable[..., LabJob], node: Caller, alice: User) -> None:
    job = ask()
    worker = JobCaller(taken(node))
    row = Node.objects.get()
    node_revoke(node=row, actor=alice)
    job.refresh_from_db()
    assert job.state == JobState.WAITING
    assert refused(worker.beat()) == (401, "unknown_token")
    node_rotate(node=row, actor=alice)
    assert refused(worker.beat()) == (401, "unknown_token"), "let in again, the old token stays dead"
