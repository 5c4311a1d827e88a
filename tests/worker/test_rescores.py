"""Re-scores by a worker's supervisor against a real web server, with the real program: samples travel in pages, scores
come back, and a worker that dies in the middle loses none that are stored."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.background.reconcile import jobs_lost
from cohort.ingest import rescored
from cohort.lab.models import JobState, LabJob
from cohort.lab.services import job_cancel
from cohort.review.models import Rescore, RescoredSample, Sample
from cohort.review.rescores import figures_store, rescore_request
from cohort.runs.models import Run
from grpo_core.protocol.messages import JobFinish
from grpo_core.sandbox import Report
from tests.factories.rescores import ended_run, second
from tests.factories.sandbox_reports import WORKS
from tests.factories.worker import NODE
from tests.processes import DEADLINE, belonging_to, wait_for
from tests.worker.conftest import Site, worker_settings
from tests.worker.stand_in import child
from worker.node import facts
from worker.platform_client.client import Platform
from worker.supervisor.job import run_job
from worker.supervisor.loop import Limits, Supervisor

MOODY = """
def verify(sample):
    text = sample.completion
    if text == "raise":
        raise ValueError("no <b>such</b> thing")
    while text == "hang":
        pass
    return 1.0 if text == "17." else 0.0
"""
MOODY_REWARD: dict[str, Any] = {
    "components": [{"name": "own", "kind": "python", "params": {"source": MOODY}}],
    "limits": {"deadline_seconds": 1.0},
}
"""Raises, or never ends, where the completion says so."""


@dataclass
class Lab:
    """The platform with a worker that does jobs with quick turns."""

    site: Site
    platform: Platform
    folder: Path
    stop: threading.Event
    background: Callable[..., Any]

    def request(self, run: Run, **spec: Any) -> Rescore:
        return rescore_request(run=run, version=second(self.site, **spec), actor=self.site.actor)

    def do(self, rescore: Rescore, **more: Any) -> JobFinish | None:
        """The worker's last word; the re-score is as it is then."""
        limits = Limits(tick=0.05, beat=0.1, disk=0.0)
        settings = worker_settings(self.folder)
        supervisor = Supervisor(self.platform, settings, child("finish"), self.stop, limits=limits, **more)
        finish = run_job(supervisor, rescore.job_id)
        rescore.refresh_from_db()
        return finish


@pytest.fixture
def lab(site: Site, tmp_path: Path, shutdown: threading.Event, background: Any) -> Iterator[Lab]:
    with Platform(site.url, site.node_token) as platform:
        platform.present(facts.with_sandbox(NODE, Report.from_json(WORKS)))
        yield Lab(site, platform, tmp_path, shutdown, background)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is one group."""
    monkeypatch.setattr(rescored, "PAGE_GROUPS", 1)


def rows(rescore: Rescore) -> list[tuple[str, float | None, str]]:
    """(completion, its second reward, why it has none), in order."""
    ordered = RescoredSample.objects.filter(rescore=rescore).order_by("sample__step", "sample__index")
    return list(ordered.values_list("sample__completion", "value", "error_class"))


def test_every_sample_gets_its_score_page_by_page(lab: Lab, small_pages: None) -> None:
    rescore = lab.request(ended_run(lab.site))
    finish = lab.do(rescore)
    assert (finish and finish.end, finish and finish.message) == ("done", "")
    assert rows(rescore) == [
        *(("17.", 1.0, ""), ("so 9.", 0.0, ""), ("17", 1.0, ""), ("no", 0.0, "")),
        *(("18.", 1.0, ""), ("3.", 0.0, ""), ("no", 0.0, ""), ("none", 0.0, "")),
    ]
    assert (rescore.done, rescore.errors, rescore.job.result["samples"]) == (8, {}, 8)
    figures_store(rescore.pk)
    rescore.refresh_from_db()
    assert rescore.figures is not None
    assert rescore.figures["confusion"] == [[2, 2, 0], [1, 3, 0], [0, 0, 0]]
    assert list((lab.folder / "runs" / "lab").iterdir()) == []


def test_a_verifier_that_raises_or_hangs_counts_as_in_a_run(lab: Lab) -> None:
    """A sample on which it raises has no score; one on which it never ends has 0, for the completion made it hang."""
    works = Report.from_json(WORKS)
    rescore = lab.request(ended_run(lab.site, [["17.", "raise", "hang"]]), spec=MOODY_REWARD)
    finish = lab.do(rescore, sandbox=works)
    assert finish is not None
    assert (finish.end, finish.message) == ("done", "")
    assert rows(rescore) == [("17.", 1.0, ""), ("raise", None, "verifier"), ("hang", 0.0, "")]
    assert rescore.errors["verifier"]["count"] == 1
    assert "no <b>such</b> thing" in rescore.errors["verifier"]["example"]


def test_problems_that_the_dataset_has_not_are_named(lab: Lab) -> None:
    run = ended_run(lab.site)
    run.groups.filter(step=2).update(problem_id="other")
    rescore = lab.request(run)
    lab.do(rescore)
    assert rescore.job.error == ""
    assert rescore.errors == {"no_problem": {"count": 2, "example": "the run's dataset has no problem 'other'"}}
    assert rescore.done == 8


def stuck(rescore: Rescore) -> Callable[[], bool]:
    """Whether the first group is stored, and the program sits at the second, which never ends."""
    return lambda: bool(Rescore.objects.get(pk=rescore.pk).done == 1 and belonging_to_job())


def belonging_to_job() -> bool:
    return LabJob.objects.filter(state=JobState.RUNNING).exists()


@pytest.fixture
def endless(lab: Lab, small_pages: None) -> Rescore:
    """Its second group takes longer than any test waits."""
    patient = {**MOODY_REWARD, "limits": {"deadline_seconds": 3600.0}}
    return lab.request(ended_run(lab.site, [["17."], ["hang"]]), spec=patient)


def test_a_program_that_is_killed_resumes_after_what_is_stored(lab: Lab, endless: Rescore) -> None:
    works = Report.from_json(WORKS)
    ends = lab.background(lambda: lab.do(endless, sandbox=works))
    wait_for(stuck(endless), "the first group is stored")
    for process in belonging_to(lab.folder / "runs" / "lab"):
        if os.getsid(process.pid) == process.pid:
            process.send_signal(signal.SIGKILL)
    finish = ends.result(timeout=DEADLINE)
    assert (finish.end, finish.code) == ("failed", "job_died")
    endless.refresh_from_db()
    assert endless.done == 1


def test_a_worker_that_is_lost_is_followed_by_another(lab: Lab, endless: Rescore) -> None:
    works = Report.from_json(WORKS)
    ends = lab.background(lambda: lab.do(endless, sandbox=works))
    wait_for(stuck(endless), "the first group is stored")
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert wait_for(jobs_lost, "its lease is over") == [endless.job_id]
    assert ends.result(timeout=DEADLINE) is None, "it is another worker's by now"
    Sample.objects.filter(completion="hang").update(completion="no")
    finish = lab.do(endless, sandbox=works)
    assert (finish and finish.end, finish and finish.message) == ("done", "")
    assert rows(endless) == [("17.", 1.0, ""), ("no", 0.0, "")]
    assert (endless.begun_with, endless.done) == (1, 2)


def test_it_can_be_called_off(lab: Lab, endless: Rescore) -> None:
    works = Report.from_json(WORKS)
    ends = lab.background(lambda: lab.do(endless, sandbox=works))
    wait_for(stuck(endless), "the first group is stored")
    job_cancel(job=endless.job, actor=lab.site.actor)
    assert ends.result(timeout=DEADLINE).end == "cancelled"
    wait_for(lambda: not belonging_to(lab.folder / "runs" / "lab"), "nothing of it runs")
    endless.refresh_from_db()
    assert (endless.job.state, endless.done, endless.figures) == (JobState.CANCELLED, 1, None)
