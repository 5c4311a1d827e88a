"""How jobs of the reward lab end: beats, finishes, what a probe leaves, and what the reconciler does with lost ones."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab import jobs
from cohort.lab.models import JobState, LabJob, VerifierProbe
from cohort.lab.services import JobOver, job_cancel, jobs_expire, jobs_republish
from cohort.lab.waiting import why_waits
from cohort.runs.models import Draining, Node
from cohort.runs.nodes import node_create, node_drain, node_present
from grpo_core.broker import LAB_QUEUE
from grpo_core.config_reward import RewardConfig
from grpo_core.lab.result import MAX_RESULT_BYTES
from grpo_core.probe.problems import problems_builtin
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards import Rubric, Runner
from tests.web.conftest import R1_EXACT
from tests.web.control import stop_clock
from tests.web.lab_calls import PYTHON, RIGHT, JobCaller, asking, claim, result, taken
from tests.web.sandbox_reports import BROKEN, WORKS, node_info
from tests.web.worker_calls import Caller, refused
from tests.worker.queues import take_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(db: None) -> Caller:
    return Caller(node_create(name="gpu-1")[1])


@pytest.fixture
def ask(ours: Project, alice: User) -> Callable[..., LabJob]:
    return asking(ours, alice)


# ---------------------------------------------------------------------- the end


def test_progress_and_a_persons_wish_come_with_beats(ask: Callable[..., LabJob], node: Caller, alice: User) -> None:
    job = ask()
    worker = JobCaller(taken(node))
    told = {"phase": "scoring", "done": 3, "total": 9}
    assert worker.beat(progress=told).json()["desired"] == "run"
    job.refresh_from_db()
    assert job.progress == told
    job_cancel(job=job, actor=alice)
    job_cancel(job=job, actor=alice)
    assert job.state == JobState.RUNNING
    assert worker.beat().json()["desired"] == "cancel"
    assert worker.finish("cancelled").status_code == 204
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert AuditEntry.objects.filter(kind="lab_job_cancelled").count() == 1
    with pytest.raises(JobOver):
        job_cancel(job=job, actor=alice)


def test_one_that_waits_is_called_off_at_once(ask: Callable[..., LabJob], node: Caller, alice: User) -> None:
    job = ask()
    job_cancel(job=job, actor=alice)
    assert job.state == JobState.CANCELLED
    assert refused(claim(node)) == (409, "not_waiting")


def test_a_called_off_job_that_is_lost_or_given_back_is_over(
    ask: Callable[..., LabJob], node: Caller, alice: User
) -> None:
    lost, released = ask(), ask()
    workers = [JobCaller(taken(node)), JobCaller(taken(node))]
    for job in (lost, released):
        job_cancel(job=job, actor=alice)
    assert workers[1].finish("released").status_code == 204
    LabJob.objects.filter(pk=lost.pk).update(lease_until=Now() - timedelta(seconds=1))
    assert jobs_expire() == [lost.pk]
    assert {job.state for job in LabJob.objects.all()} == {JobState.CANCELLED}


def test_a_failure_is_told_in_its_words(ask: Callable[..., LabJob], node: Caller) -> None:
    job = ask()
    worker = JobCaller(taken(node))
    told: dict[str, Any] = {"code": "model_error", "message": "no such\x00 model", "log_tail": "last\x00 line"}
    assert worker.finish("failed", **told).status_code == 204
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.FAILED, "model_error")
    assert (job.error, job.log_tail) == ("no such\ufffd model", "last\ufffd line")


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        {"schema": "cohort-lab/1"},
        {"kind": "both"},
        {"rubric_digest": "0" * 64},
        {"seconds": "long"},
        {"surprise": 1},
        {"cost": {"big": 2**60}},
    ],
)
def test_what_is_no_result_is_refused_and_not_stored(
    ask: Callable[..., LabJob], node: Caller, broken: dict[str, Any] | None
) -> None:
    job = ask()
    worker = JobCaller(taken(node))
    sent = None if broken is None else broken and {**result(), **broken}
    if broken == {"schema": "cohort-lab/1"}:
        sent = broken
    assert refused(worker.finish("done", result=sent)) == (422, "bad_result")
    job.refresh_from_db()
    assert (job.state, job.result) == (JobState.RUNNING, None)
    assert worker.finish("failed", code="bad_result", message="so").status_code == 204


def test_a_result_that_is_too_large(ask: Callable[..., LabJob], node: Caller) -> None:
    ask()
    worker = JobCaller(taken(node))
    large = result(completion="x" * (MAX_RESULT_BYTES // 8), count=9)
    assert refused(worker.finish("done", result=large)) == (422, "bad_result")
    huge = result(completion="x" * (MAX_RESULT_BYTES // 8), count=40)
    assert refused(worker.finish("done", result=huge)) == (413, "too_large")
    assert LabJob.objects.get().result is None
    assert worker.finish("done", result=result(completion="x" * 1_000_000)).status_code == 204


def test_texts_that_cannot_be_stored_are_replaced(ask: Callable[..., LabJob], node: Caller) -> None:
    job = ask()
    assert JobCaller(taken(node)).finish("done", result=result(completion="a\x00b\ud800c")).status_code == 204
    job.refresh_from_db()
    assert (job.result or {})["samples"][0]["completion"] == "a\ufffdb\ufffdc"


# ---------------------------------------------------------------------- probes


@pytest.fixture
def version(ours: Project, alice: User) -> VerifierVersion:
    return verifier_version_create(project=ours, actor=alice, name="r1", spec=R1_EXACT)


def probed(spec: dict[str, Any]) -> dict[str, Any]:
    rubric = Rubric(RewardConfig.model_validate(spec))
    with Runner(rubric) as runner:
        return probe_rubric(rubric, list(problems_builtin(rubric)), runner=runner, limit=2, source="builtin").to_json()


def test_a_probe_of_a_version_is_kept(ask: Callable[..., LabJob], node: Caller, version: VerifierVersion) -> None:
    job = ask("probe", {"problems": 2}, version=version)
    worker = JobCaller(taken(node))
    assert refused(worker.finish("done", result=result())) == (422, "bad_result"), "no report of a probe"
    report = probed(R1_EXACT)
    assert worker.finish("done", result=report).status_code == 204
    assert worker.finish("done", result=report).status_code == 204
    kept = VerifierProbe.objects.get()
    assert (kept.version, kept.job, kept.dataset, kept.by) == (version, job, None, job.created_by)
    assert (kept.verdict, kept.pays_wrong) == (report["verdict"], report["pays_wrong"])
    entry = AuditEntry.objects.get(kind="verifier_probed")
    assert (entry.actor, entry.subject) == ("node:gpu-1", f"verifier:{version.verifier_id}")


def test_a_probe_of_a_draft_is_no_probe_of_a_version(ask: Callable[..., LabJob], node: Caller) -> None:
    job = ask("probe", {"problems": 2}, spec=R1_EXACT)
    assert JobCaller(taken(node)).finish("done", result=probed(R1_EXACT)).status_code == 204
    job.refresh_from_db()
    assert job.state == JobState.DONE
    assert not VerifierProbe.objects.exists()


def test_a_report_of_another_reward_is_refused(
    ask: Callable[..., LabJob], node: Caller, version: VerifierVersion
) -> None:
    ask("probe", {"problems": 2}, version=version)
    assert refused(JobCaller(taken(node)).finish("done", result=probed(RIGHT))) == (422, "bad_result")
    assert not VerifierProbe.objects.exists()


# ---------------------------------------------------------------------- the reconciler


def test_lost_once_it_waits_again_lost_twice_it_fails(
    ask: Callable[..., LabJob], node: Caller, django_capture_on_commit_callbacks: Any
) -> None:
    job = ask()
    take_all(LAB_QUEUE)
    taken(node)
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    with django_capture_on_commit_callbacks(execute=True):
        assert jobs_expire() == [job.pk]
    assert take_all(LAB_QUEUE) == [[job.pk]]
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.WAITING, "worker_lost")
    worker = JobCaller(taken(node))
    assert worker.finish("released").status_code == 204, "a worker that is shut down loses nothing"
    taken(node)
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert jobs_expire() == [job.pk]
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.FAILED, "worker_lost")
    assert "lost twice, the last time on gpu-1" in job.error


def test_what_waits_long_is_told_again_but_never_on_top_of_a_message(
    ask: Callable[..., LabJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_published", {})
    asked = stop_clock(monkeypatch, jobs)
    first, second = ask(), ask()
    take_all(LAB_QUEUE)
    now = 1000.0
    LabJob.objects.update(created_at=asked - timedelta(seconds=9))
    assert jobs_republish(clock=lambda: now) == [], "they wait for a moment only"
    LabJob.objects.update(created_at=asked - timedelta(seconds=11))
    assert jobs_republish(clock=lambda: now) == [first.pk, second.pk]
    assert jobs_republish(clock=lambda: now + 29) == []
    assert jobs_republish(clock=lambda: now + 31) == [], "their messages lie there still"
    assert sorted(take_all(LAB_QUEUE)) == [[first.pk], [second.pk]], "within one millisecond their order is open"
    assert jobs_republish(clock=lambda: now + 62) == [first.pk, second.pk]
    take_all(LAB_QUEUE)


def test_a_lease_of_before_the_clock_was_set_back_is_no_longer_than_any(
    ask: Callable[..., LabJob], node: Caller
) -> None:
    ask()
    taken(node)
    LabJob.objects.update(lease_until=Now() + timedelta(days=1))
    assert jobs_expire() == []
    assert LabJob.objects.filter(lease_until__lt=Now() + timedelta(seconds=61)).exists()


def test_why_it_waits(ask: Callable[..., LabJob], node: Caller, alice: User) -> None:
    first = ask()
    assert why_waits(first).startswith("no node is here")
    row = Node.objects.get()
    node_present(node=row, info=node_info(WORKS))
    assert why_waits(first) == "a worker takes it within seconds"
    code = ask(spec=PYTHON)
    assert why_waits(code) == "1 other before it waits too"
    LabJob.objects.filter(pk=first.pk).update(created_at=Now() - timedelta(minutes=1))
    assert "worker --queues lab" in why_waits(first)
    taken(node)
    assert why_waits(code) == "the lab's workers do 1 other; each does one at a time"
    node_present(node=row, info=node_info(BROKEN))
    assert "gpu-1: Ubuntu's AppArmor" in why_waits(code)
    node_drain(node=row, actor=alice, how=Draining.FINISH)
    first.refresh_from_db()
    assert why_waits(first) == "", "it runs"
    assert "draining" in why_waits(ask())
