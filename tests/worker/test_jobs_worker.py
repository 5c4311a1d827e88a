"""A real Celery worker process of the queue `lab` takes real messages and does jobs with real programs."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import transaction
from django.db.models.functions import Now

from cohort.background.reconcile import jobs_lost
from cohort.background.revoke import node_revoke
from cohort.catalog.services import dataset_create
from cohort.lab.jobs import jobs_republish
from cohort.lab.models import JobState, LabJob, VerifierProbe
from cohort.lab.services import job_request
from cohort.nodes.models import Node
from grpo_core.lab.result import LabResult
from grpo_core.protocol.queues import LAB_QUEUE
from tests.processes import DEADLINE, belonging_to, wait_for
from tests.worker.conftest import Site, celery_worker, wait_offering
from tests.worker.queues import take_all

RIGHT = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": text} for text in ("it is 2", "it is 3")]}
ENDLESS = {"problems": 64, "group_size": 64, "max_completion_tokens": 8192}
"""A job that takes minutes, so that it is not over before somebody ends it."""


@pytest.fixture
def lab(tiny: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("cohort.runs.dispatch._published", {})  # of another test's jobs, whose ids come again
    take_all(LAB_QUEUE)
    return tiny


def ask(site: Site, kind: Any, options: dict[str, Any], **more: Any) -> LabJob:
    reward: dict[str, Any] = {} if "version" in more else {"spec": RIGHT}
    return job_request(project=site.project, actor=site.actor, kind=kind, options=options, **reward, **more)


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
    return jobs_lost()


def left_of(folder: Path) -> list[psutil.Process]:
    """Living processes of jobs below this folder."""
    return belonging_to(folder / "runs" / "lab")


def nothing_left(folder: Path) -> bool:
    return not left_of(folder) and not list((folder / "runs" / "lab").iterdir())


@pytest.fixture
def sampling(lab: Site, tmp_path: Path) -> Iterator[Any]:
    """A worker whose endless job has come to sampling."""
    lines = "".join(f'{{"prompt": "{number} + 1 =", "answer": "{number + 1}"}}\n' for number in range(64))
    catalog: dict[str, Any] = {"project": lab.project, "actor": lab.actor, "source": "tests"}
    dataset = dataset_create(name="many", format="plain", chunks=[lines.encode()], **catalog)
    job = ask(lab, "sample", ENDLESS, dataset=dataset, base_model=lab.base_model)
    with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE) as process:
        wait_offering(samples(job), "it samples", process)
        yield process, job


def test_jobs_of_each_kind_are_done_until_the_node_is_revoked(lab: Site, tmp_path: Path) -> None:
    tried = ask(lab, "try", TEXTS)
    options = {"problems": 3, "group_size": 4, "max_completion_tokens": 5}
    sampled = ask(lab, "sample", options, dataset=lab.dataset, base_model=lab.base_model)
    probed = ask(lab, "probe", {"problems": 3}, version=lab.verifier_version)
    with celery_worker(lab, tmp_path, "--queues", LAB_QUEUE) as process:
        for job in (tried, sampled, probed):
            wait_offering(becomes(job, JobState.DONE, JobState.FAILED), f"job {job.kind} ends", process)
        assert [job.error for job in (tried, sampled, probed)] == ["", "", ""]
        assert nothing_left(tmp_path)
        node = Node.objects.get()
        assert node.last_seen_at is None, "the lab's worker is no sign that runs are taken there"
        node_revoke(node=node, actor=None)
        waiting = ask(lab, "try", TEXTS)
        assert process.wait(DEADLINE) == os.EX_NOPERM
    assert becomes(waiting, JobState.WAITING)()
    assert tried.node == node
    assert [sample.reward for sample in LabResult.model_validate(tried.result).samples] == [1.0, 0.0]
    result = LabResult.model_validate(sampled.result)
    assert (result.groups, result.group_size, len(result.samples)) == (3, 4, 12)
    assert all(sample.tokens and sample.tokens <= 5 for sample in result.samples)
    assert result.no_signal is not None
    assert result.no_signal.of + result.no_signal.unscored == 3
    probe = VerifierProbe.objects.get()
    assert (probe.version, probe.job, probe.by) == (lab.verifier_version, probed, lab.actor)
    assert probe.verdict == probe.report["verdict"] == (probed.result or {})["verdict"]
    assert "Traceback" not in (tmp_path / "worker.log").read_text(errors="replace")


@pytest.mark.slow
def test_a_supervisor_that_is_killed_loses_its_job_to_another(sampling: Any, tmp_path: Path, settings: Any) -> None:
    settings.COHORT_LEASE_SECONDS = 3600
    process, job = sampling
    started = psutil.Process(process.pid).children()
    [supervisor] = [child for child in started if "worker.supervisor" in child.cmdline()]
    supervisor.kill()
    wait_for(lambda: not left_of(tmp_path), "its reaper ends all of it", process)
    assert jobs_lost() == [], "its lease is not over yet"
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
def test_a_worker_that_is_killed_gives_its_job_back(sampling: Any, tmp_path: Path) -> None:
    process, job = sampling
    process.kill()
    process.wait()
    wait_for(becomes(job, JobState.WAITING), "its supervisor gives it back")
    wait_for(lambda: nothing_left(tmp_path), "nothing of it is left")
    assert (job.error_code, job.fence) == ("", 1)
    assert take_all(LAB_QUEUE) == [[job.pk]], "others hear of it at once"
    LabJob.objects.update(created_at=Now() - timedelta(hours=1))
    assert jobs_republish() == [job.pk]
