"""A real Celery worker process of the queue `lab` takes real messages and does jobs with real programs."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from cohort.catalog.services import base_model_register, dataset_create
from cohort.celery import app
from cohort.lab.models import JobState, LabJob, VerifierProbe
from cohort.lab.services import job_ask, job_cancel, jobs_expire, jobs_republish
from cohort.runs.models import Node
from cohort.runs.revoke import node_revoke
from grpo_core.broker import LAB_JOB_TASK, LAB_QUEUE
from grpo_core.lab.result import LabResult
from tests.processes import wait_for
from tests.worker.cable import Cable
from tests.worker.celery_process import celery_worker
from tests.worker.conftest import Site
from tests.worker.queues import take_all
from worker.keeper import processes

RIGHT = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": text} for text in ("it is 2", "it is 3")]}
ENDLESS = {"problems": 64, "group_size": 64, "max_completion_tokens": 8192}
"""A job that takes minutes, so that it is not over before somebody ends it."""


@pytest.fixture
def lab(tiny: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("cohort.lab.jobs._published", {})  # of another test's jobs, whose ids come again
    take_all(LAB_QUEUE)
    return tiny


def ask(site: Site, kind: Any, options: dict[str, Any], **more: Any) -> LabJob:
    given: dict[str, Any] = {"spec": RIGHT} if "version" not in more else {}
    return job_ask(project=site.project, actor=site.user, kind=kind, options=options, **given, **more)


def becomes(job: LabJob, *states: JobState) -> Callable[[], bool]:
    def there() -> bool:
        job.refresh_from_db()
        return job.state in states

    return there


def samples(job: LabJob) -> Callable[[], bool]:
    """Whether the job's program has come to sampling."""
    running = becomes(job, JobState.RUNNING)
    return lambda: running() and job.progress.get("phase") == "sampling and scoring"


def expired() -> list[int]:
    """As after a minute of silence; a beat may come between the two lines."""
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    return jobs_expire()


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []  # it has ended meanwhile


def left_of(folder: Path) -> list[list[str]]:
    """Command lines of living processes of jobs below this folder."""
    living = [words_of(one.pid) for one in processes() if one.lives]
    return [words for words in living if any(str(folder / "runs" / "lab") in word for word in words)]


def nothing_left(folder: Path) -> bool:
    return not left_of(folder) and not list((folder / "runs" / "lab").iterdir())


@pytest.fixture
def sampling(lab: Site, tmp_path: Path) -> Callable[..., AbstractContextManager[Any]]:
    """A worker whose endless job has come to sampling."""

    @contextmanager
    def begin(**variables: str) -> Iterator[tuple["subprocess.Popen[bytes]", LabJob]]:
        lines = "".join(f'{{"prompt": "{number} + 1 =", "answer": "{number + 1}"}}\n' for number in range(64))
        dataset = dataset_create(
            project=lab.project, actor=lab.user, name="many", format="jsonl", chunks=[lines.encode()], source="tests"
        )
        job = ask(lab, "sample", ENDLESS, dataset=dataset, base_model=lab.base_model)
        with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE, **variables) as process:
            wait_for(samples(job), "it samples", process)
            yield process, job

    return begin


def test_jobs_of_each_kind_are_done_and_leave_nothing(lab: Site, tmp_path: Path) -> None:
    tried = ask(lab, "try", TEXTS)
    options = {"problems": 3, "group_size": 4, "max_completion_tokens": 5}
    sampled = ask(lab, "sample", options, dataset=lab.dataset, base_model=lab.base_model)
    probed = ask(lab, "probe", {"problems": 3}, version=lab.verifier_version)
    with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE) as process:
        for job in (tried, sampled, probed):
            wait_for(becomes(job, JobState.DONE, JobState.FAILED), f"job {job.kind} ends", process)
    assert [job.error for job in (tried, sampled, probed)] == ["", "", ""]
    assert [one.reward for one in LabResult.model_validate(tried.result).samples] == [1.0, 0.0]
    assert tried.node == Node.objects.get()
    found = LabResult.model_validate(sampled.result)
    assert (found.groups, found.group_size, len(found.samples)) == (3, 4, 12)
    assert all(one.tokens and one.tokens <= 5 for one in found.samples)
    assert found.no_signal is not None
    assert found.no_signal.of + found.no_signal.unscored == 3
    probe = VerifierProbe.objects.get()
    assert (probe.version, probe.job, probe.by) == (lab.verifier_version, probed, lab.user)
    assert probe.verdict == probe.report["verdict"] == (probed.result or {})["verdict"]
    assert nothing_left(tmp_path)
    assert "Traceback" not in (tmp_path / "worker.log").read_text(errors="replace")
    assert Node.objects.get().last_seen_at is None, "the lab's worker is no sign that runs are taken there"


@pytest.mark.slow
def test_reference_answers_and_a_model_that_is_not_there(lab: Site, tmp_path: Path) -> None:
    rows = ask(lab, "try", {"rows": 3}, dataset=lab.dataset)
    absent = base_model_register(
        project=lab.project, actor=lab.user, name="absent", path="acme/absent", revision="a" * 40
    )
    missing = ask(lab, "sample", {"problems": 1}, dataset=lab.dataset, base_model=absent)
    with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE, HF_HUB_OFFLINE="1") as process:
        for job in (rows, missing):
            wait_for(becomes(job, JobState.DONE, JobState.FAILED), f"job {job.kind} ends", process)
    assert {one.origin for one in LabResult.model_validate(rows.result).samples} == {"reference"}
    assert (missing.state, missing.error_code) == (JobState.FAILED, "model_error")


@pytest.mark.slow
def test_a_job_that_is_called_off_is_killed_with_all_it_started(lab: Site, sampling: Any, tmp_path: Path) -> None:
    with sampling() as (process, job):
        after = ask(lab, "try", TEXTS)
        assert left_of(tmp_path)
        job_cancel(job=job, actor=lab.user)
        wait_for(becomes(job, JobState.CANCELLED), "it is called off", process)
        wait_for(becomes(after, JobState.DONE), "the next is done", process)
        assert not left_of(tmp_path)
    assert job.result is None
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_doubled_and_lost_messages(lab: Site, tmp_path: Path) -> None:
    """A doubled one finds nothing; one that is lost is sent again by the reconciler."""
    doubled, lost = ask(lab, "try", TEXTS), ask(lab, "try", TEXTS)
    assert sorted(take_all(LAB_QUEUE)) == [[doubled.pk], [lost.pk]]  # both are written within a millisecond
    for _ in range(3):
        app.send_task(LAB_JOB_TASK, args=[doubled.pk], queue=LAB_QUEUE)
    log = tmp_path / "worker.log"
    with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE) as process:
        wait_for(becomes(lost, JobState.DONE), "a message brings whatever waits", process)
        assert (doubled.fence, lost.fence) == (0, 1)
        wait_for(lambda: "not claimed" in log.read_text(errors="replace"), "the third finds nothing", process)
        later = ask(lab, "try", TEXTS)
        take_all(LAB_QUEUE)  # unless it was quicker
        LabJob.objects.filter(pk=later.pk).update(created_at=Now() - timedelta(minutes=1))
        sent = jobs_republish()
        assert sent == [later.pk] or LabJob.objects.get(pk=later.pk).state != JobState.WAITING
        wait_for(becomes(later, JobState.DONE), "it is sent again", process)
    doubled.refresh_from_db()
    assert (doubled.fence, doubled.state) == (1, JobState.DONE)


def test_a_supervisor_that_is_killed_loses_its_job_to_another(sampling: Any, tmp_path: Path, settings: Any) -> None:
    settings.COHORT_LEASE_SECONDS = 3600
    with sampling() as (process, job):
        [supervisor] = [
            one.pid for one in processes() if one.parent == process.pid and "worker.supervise_job" in words_of(one.pid)
        ]
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: not left_of(tmp_path), "its keeper ends all of it", process)
        assert jobs_expire() == [], "its lease is not over yet"
        with transaction.atomic():  # until it is looked at, no worker hears that it waits
            assert wait_for(expired, "its lease is over") == [job.pk]
            job.refresh_from_db()
            assert (job.state, job.error_code) == (JobState.WAITING, "worker_lost")
        wait_for(samples(job), "it is taken again", process)
        assert job.fence == 2
        assert wait_for(expired, "its lease is over") == [job.pk]
        job.refresh_from_db()
        assert (job.state, job.error_code) == (JobState.FAILED, "worker_lost")
        wait_for(lambda: not left_of(tmp_path), "the worker that lost it ends it", process)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["asked", "killed"])
def test_a_worker_that_ends_gives_its_job_back(sampling: Any, tmp_path: Path, end: str) -> None:
    with sampling() as (process, job):
        if end == "killed":
            process.kill()
            process.wait()
    wait_for(becomes(job, JobState.WAITING), "its supervisor gives it back")
    wait_for(lambda: nothing_left(tmp_path), "nothing of it is left")
    assert (job.error_code, job.fence) == ("", 1)
    # Others hear of it at once; a message that the leaving worker takes along is sent again by the reconciler.
    assert take_all(LAB_QUEUE) in ([], [[job.pk]])
    LabJob.objects.update(created_at=Now() - timedelta(hours=1))
    assert jobs_republish() == [job.pk]
    assert take_all(LAB_QUEUE) == [[job.pk]]


@pytest.mark.slow
def test_a_revoked_node_loses_its_job_and_its_worker_stops(sampling: Any, tmp_path: Path) -> None:
    with sampling() as (process, job):
        node_revoke(node=Node.objects.get(), actor=None)
        job.refresh_from_db()
        assert job.state == JobState.WAITING
        wait_for(lambda: nothing_left(tmp_path), "what ran is killed", process)
        wait_for(lambda: process.poll() == os.EX_NOPERM, "the worker, refused at its next claim, stops")


@pytest.mark.slow
def test_the_platform_out_of_reach_ends_the_job(sampling: Any, cable: Cable, tmp_path: Path, settings: Any) -> None:
    """So that nothing of it runs when another worker has it."""
    settings.COHORT_LEASE_SECONDS = 15
    with sampling(COHORT_URL=cable.url) as (process, job):
        cable.cut()
        wait_for(lambda: nothing_left(tmp_path), "it is ended", process)
        assert wait_for(expired, "its lease is over") == [job.pk]
