"""A job's supervisor against a real web server, with the real program: every way in which a job ends early."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.lab.models import JobState, LabJob
from cohort.lab.services import job_cancel, job_request
from cohort.nodes.engines import sandbox_of
from cohort.nodes.models import Node
from grpo_core.protocol.messages import JobFinish, JobGiven
from grpo_core.sandbox import Report
from tests.factories.sandbox_reports import BROKEN, WORKS
from tests.factories.worker import NODE
from tests.processes import DEADLINE, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Site, worker_settings
from tests.worker.stand_in import child
from worker.folders import job_folder
from worker.node import facts
from worker.platform_client.client import Platform, Refused
from worker.processes.reaper import processes
from worker.supervisor.job import run_job
from worker.supervisor.loop import Limits, Supervisor

RIGHT = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": "2"}]}


@dataclass
class Lab:
    """The platform with a worker that does jobs with quick turns, over a cable."""

    site: Site
    cable: Cable
    platform: Platform
    folder: Path
    stop: threading.Event

    def ask(self, **more: Any) -> LabJob:
        job: dict[str, Any] = {"kind": "try", "options": TEXTS, "spec": RIGHT, **more}
        return job_request(project=self.site.project, actor=self.site.actor, **job)

    def supervisor(self, **more: Any) -> Supervisor:
        settings, limits = worker_settings(self.folder, **more), Limits(tick=0.05, beat=0.1, disk=0.0)
        return Supervisor(self.platform, settings, child("finish"), self.stop, limits=limits)

    def run(self, job: LabJob, **more: Any) -> JobFinish | None:
        """The worker's last word; the job is as it is then."""
        finish = run_job(self.supervisor(**more), job.pk)
        job.refresh_from_db()
        return finish


@pytest.fixture
def lab(site: Site, cable: Cable, tmp_path: Path, shutdown: threading.Event) -> Iterator[Lab]:
    with Platform(cable.url, site.node_token) as platform:
        yield Lab(site, cable, platform, tmp_path, shutdown)


def halted(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a job's program begins and does nothing more, as one that hangs."""
    monkeypatch.setattr(job_folder.JobFolder, "command", lambda self: ["/bin/sh", "-c", "sleep 600 & echo begun; wait"])


def begun(folder: Path) -> Callable[[], bool]:
    return lambda: any("begun" in log.read_text() for log in folder.glob("runs/lab/job-*/log.txt"))


def living(folder: Path) -> list[int]:
    """Processes whose current folder is below this one."""
    pids = []
    for row in processes():
        with suppress(OSError):
            if row.lives and str(folder) in os.readlink(f"/proc/{row.pid}/cwd"):
                pids.append(row.pid)
    return pids


def test_a_job_is_done_and_nothing_of_it_stays(lab: Lab, tmp_path: Path) -> None:
    job = lab.ask()
    finish = lab.run(job)
    assert (finish and finish.end, job.state, job.error) == ("done", JobState.DONE, "")
    assert job.seconds is not None
    assert job.seconds > 0
    assert list((tmp_path / "runs" / "lab").iterdir()) == []
    with pytest.raises(Refused, match="not waiting"):
        lab.run(job)


def kill(lab: Lab) -> None:
    for pid in living(lab.folder):
        if pid != os.getpid() and os.getsid(pid) == pid:
            os.kill(pid, signal.SIGKILL)


def shut_down(lab: Lab) -> None:
    lab.stop.set()


def call_off(lab: Lab) -> None:
    job_cancel(job=LabJob.objects.get(), actor=lab.site.actor)


def give_away(lab: Lab) -> None:
    LabJob.objects.update(fence=2, token_digest="another's")


def cut_off(lab: Lab) -> None:
    """For longer than its lease, so that nothing of it runs when another worker has it."""
    lab.cable.cut()
    (lab.folder / "late").touch()


def take_too_long(lab: Lab) -> None:
    (lab.folder / "late").touch()


@pytest.mark.parametrize(
    ("happens", "end", "state", "code", "fence"),
    [
        (kill, "failed", JobState.FAILED, "job_died", 1),
        (take_too_long, "failed", JobState.FAILED, "deadline", 1),
        (shut_down, "released", JobState.WAITING, "", 1),
        (call_off, "cancelled", JobState.CANCELLED, "", 1),
        (give_away, None, JobState.RUNNING, "", 2),  # its new owner's word alone counts
        (cut_off, None, JobState.RUNNING, "", 1),
    ],
)
def test_a_job_that_is_broken_off_leaves_no_process(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    background: Any,
    happens: Any,
    end: Any,
    state: Any,
    code: str,
    fence: int,
) -> None:
    monkeypatch.setattr("cohort.lab.jobs.DEADLINE", timedelta(minutes=30))
    late, seconds = (lab.folder / "late").exists, 1801 if happens is take_too_long else 61
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + seconds * late())
    monkeypatch.setattr("worker.supervisor.loop.time", clock)
    halted(monkeypatch)
    job = lab.ask()
    future = background(lambda: run_job(lab.supervisor(), job.pk))
    wait_for(begun(lab.folder), "it has begun")
    happens(lab)
    finish = future.result(timeout=DEADLINE)
    job.refresh_from_db()
    assert (finish and finish.end, job.state, job.error_code, job.fence) == (end, state, code, fence)
    assert end != "failed" or "begun" in job.log_tail
    assert living(lab.folder) == []


def too_large(job: LabJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "MAX_RESULT_BYTES", -(1024 * 1024))


def of_another_reward(job: LabJob, monkeypatch: pytest.MonkeyPatch) -> None:
    LabJob.objects.update(spec_digest="0" * 64)


def without_dataset(job: LabJob, monkeypatch: pytest.MonkeyPatch) -> None:
    LabJob.objects.update(inputs=[{**job.inputs[0], "sha256": "cd" * 32}])  # of which there is no file
    monkeypatch.setattr("worker.platform_client.client._ANEW_AFTER", (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(too_large, "result_too_large"), (of_another_reward, "bad_result"), (without_dataset, "not_prepared")],
)
def test_a_job_that_cannot_be_done(lab: Lab, monkeypatch: pytest.MonkeyPatch, spoil: Any, code: str) -> None:
    rows = {"options": {"rows": 3}, "dataset": lab.site.dataset}
    job = lab.ask(**(rows if spoil is without_dataset else {}))
    spoil(job, monkeypatch)
    lab.run(job)
    assert (job.state, job.error_code, job.result) == (JobState.FAILED, code, None)
    assert job.error


def test_a_full_disk_takes_no_job(lab: Lab) -> None:
    with pytest.raises(Refused, match="takes no job now"):
        lab.run(lab.ask(), min_free_bytes=2**60)


def test_what_a_killed_worker_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    left = tmp_path / "runs" / "lab" / "job-7-1-00000000"
    left.mkdir(parents=True)
    (left / "job.json").write_text("{}")
    times = {"heartbeat_seconds": 1, "lease_seconds": 1, "deadline_seconds": 1}
    job = JobGiven.model_validate({"job_id": 8, "fence": 1, "token": "t", "job": {}, "files": [], **times})
    with job_folder.JobFolder(tmp_path / "runs", job) as held:
        job_folder.sweep(tmp_path / "runs")
        assert not left.exists()
        assert held.path.exists()
    assert not held.path.exists()


def test_a_job_runs_where_the_operator_says_and_knows_no_token(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    least = min(19, os.nice(0) + 10)
    nicer = f"for turn in $(seq 600); do test $(nice) -ge {least} && break; sleep 0.1; done"
    code = f"{nicer}; env > ../env.txt; cat job.json > ../job.txt; nice > ../nice.txt; exit 3"
    monkeypatch.setattr(job_folder.JobFolder, "command", lambda self: ["/bin/sh", "-c", code])
    monkeypatch.setenv("COHORT_NODE_TOKEN", "t-secret")
    monkeypatch.setenv("GRPO_JUDGE_KEY", "k-judge")
    lab.run(lab.ask(), lab_device="cuda")
    folder = lab.folder / "runs" / "lab"
    assert json.loads((folder / "job.txt").read_text())["device"] == "cuda"
    seen = (folder / "env.txt").read_text()
    assert "t-secret" not in seen
    assert "GRPO_JUDGE_KEY=k-judge" in seen
    assert int((folder / "nice.txt").read_text()) >= least


def test_a_supervisor_is_handed_what_was_found() -> None:
    report = Report.from_json(WORKS)
    assert facts.received_report(facts.supervisor_environment(report)) == report
    assert facts.received_report({}) is None
    info = facts.with_sandbox(NODE, report)
    assert (info.sandbox, info.sandbox_report) == ("bubblewrap 0.8.0", WORKS)
    assert facts.with_sandbox(NODE, None).sandbox_report is None
    assert facts.REPORT_VARIABLE not in facts.supervisor_environment(None)


def test_the_sandbox_is_tried_once_and_again_while_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [BROKEN, BROKEN, WORKS]
    monkeypatch.setattr(facts, "_report", None)
    monkeypatch.setattr(facts, "self_test", lambda: Report.from_json(answers.pop(0)))
    assert [facts.report(), facts.report()] == [Report.from_json(BROKEN)] * 2
    assert len(answers) == 2
    monkeypatch.setattr(facts, "_RETRY_SECONDS", 0.0)
    assert [report.works for _ in range(3) if (report := facts.report())] == [False, True, True]
    assert answers == []


def test_the_real_sandbox_of_this_machine_is_told(site: Site) -> None:
    """Whatever it is: the platform understands what a worker here would say."""
    report = facts.report()
    assert report is not None
    with Platform(site.url, site.node_token) as platform:
        platform.present(facts.with_sandbox(NODE, report))
    shown = sandbox_of(Node.objects.get())
    assert (shown.report, shown.works) == (report, report.works)
    assert shown.works or shown.fix


def test_a_last_word_is_not_too_long_for_the_platform(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import json, os; os.mkdir('out'); error = {'code': 'c' * 90, 'message': 'm\\ud800' * 50_000}; "
        "open('out/error.json', 'w').write(json.dumps(error)); raise SystemExit(1)"
    )
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(job_folder.JobFolder, "command", lambda self: command)
    job = lab.ask()
    finish = lab.run(job)
    assert (job.state, len(job.error_code), len(job.error)) == (JobState.FAILED, 40, 20_000)
    assert finish is not None
    assert finish.code == job.error_code
