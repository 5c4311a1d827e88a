"""The supervisor as a process of its own, under a worker's task: whichever of the two dies, no trainer is left, and the
platform knows within moments.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.environment import environment
from cohort.runs.models import Attempt, Node, Run, RunState
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel
from tests.processes import clean_environment, wait_for
from tests.worker.conftest import Site
from tests.worker.stand_in import ROOT
from worker.keeper import below, process, processes
from worker.orphans import RECORD, ProcessRecord

# A worker without a broker: what Celery's signals start, then the task for one message. The trainer is the stand-in.
WORKER = """
import os, signal, sys
from contextlib import suppress
sys.path.insert(0, os.environ["TEST_ROOT"])
from worker import orphans, tasks
from worker.celery_app import SHUTDOWN
from worker.orphans import sweep
from worker.environment import environment
from worker.presence import stay_present
signal.signal(signal.SIGTERM, lambda *_: SHUTDOWN.set())
if "TEST_HANGS" not in os.environ:  # then what is killed ends, however busy the machine is
    orphans._KILL_AGAIN_SECONDS = 60.0
with suppress(Exception):  # as Celery does with what its signals raise
    sweep(environment().runs_folder)
stay_present(environment(), SHUTDOWN, SHUTDOWN.set)
tasks.run_attempt.run(int(sys.argv[1]))
if "TEST_STAY" in os.environ:
    SHUTDOWN.wait()
"""

# In the supervisor's process, before anything of it is loaded; and in the worker's, where it is to meet processes that
# hang in the kernel, which cannot be made on purpose: there SIGKILL is not sent.
SITE = """
import os, sys
if "TEST_HANGS" in os.environ and "worker.supervise" not in sys.orig_argv:
    sys.path.insert(0, os.environ["TEST_ROOT"])
    from worker import keeper, orphans
    keeper.kill = lambda one: None
    orphans.Cgroup.kill = lambda group: None
    orphans._KILL_SECONDS = 0.2
if "worker.supervise" in sys.orig_argv:
    sys.path.insert(0, os.environ["TEST_ROOT"])
    import worker.run_folder
    from tests.worker.stand_in import child_by_environment
    worker.run_folder.trainer_command = child_by_environment
"""


class Worker:
    def __init__(self, site: Site, folder: Path, run: Run, mode: str, **told: str) -> None:
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self.runs = folder / "runs"
        self.log = folder / "worker.log"
        environment_ = {
            "COHORT_URL": site.url,
            "COHORT_NODE_TOKEN": site.node_token,
            "COHORT_BROKER_URL": environment().broker_url,
            "COHORT_HOME": str(environment().home_folder),
            "COHORT_RUNS_DIR": str(self.runs),
            "COHORT_MIN_FREE_BYTES": "0",
            "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
            "TEST_ROOT": str(ROOT),
            "TEST_MODE": mode,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, str(run.pk)],
                env=clean_environment() | environment_ | told,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def record(self, fence: int = 1) -> ProcessRecord | None:
        for file in self.runs.glob(f"run-*/attempt-{fence}/{RECORD}"):
            told = ProcessRecord.model_validate_json(file.read_bytes())
            if told.pid is not None:
                return told
        return None

    def below(self) -> set[int]:
        return {one.pid for one in below(self.process.pid, processes())}

    def end(self) -> None:
        left = self.below() | {self.process.pid}
        for pid in left:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def lives(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.lives


@pytest.fixture
def worker(site: Site, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(run: Run, mode: str = "obey", **told: str) -> Worker:
        made.append(Worker(site, tmp_path, run, mode, **told))
        return made[-1]

    yield make
    for one in made:
        one.end()


@contextmanager
def training(
    worker: Callable[..., Worker], site: Site, mode: str = "obey"
) -> Iterator[tuple[Worker, Run, ProcessRecord]]:
    """A run that has stored three steps."""
    run = site.launch()
    one = worker(run, mode)
    wait_for(lambda: run.steps.count() == 3, lambda: one.log.read_text())
    told = wait_for(one.record, "the record is written")
    family = one.below()
    yield one, run, told
    wait_for(lambda: not any(map(lives, family - {one.process.pid})), lambda: f"left: {[*filter(lives, family)]}")


def state(run: Run) -> tuple[str, str]:
    run.refresh_from_db()
    return run.state, run.error_code


def test_the_whole_way(worker: Callable[..., Worker], site: Site) -> None:
    run = site.launch()
    one = worker(run, "finish")
    assert one.process.wait(timeout=120) == 0, one.log.read_text()
    assert state(run) == (RunState.SEALING, "")
    assert one.record() is None
    assert site.node_token not in one.log.read_text()


@pytest.mark.slow
def test_a_shutdown_preempts(worker: Callable[..., Worker], site: Site) -> None:
    with training(worker, site) as (one, run, _):
        one.process.terminate()
        assert one.process.wait(timeout=120) == 0
        assert state(run)[0] == RunState.QUEUED
        assert (Attempt.objects.get().state, Attempt.objects.get().end_code) == ("preempted", "worker_shutdown")
        assert one.record() is None


def test_a_worker_that_is_killed_preempts(worker: Callable[..., Worker], site: Site) -> None:
    """The kernel tells its supervisor."""
    with training(worker, site) as (one, run, _):
        one.process.kill()
        one.process.wait()
        wait_for(lambda: state(run)[0] == RunState.QUEUED, lambda: one.log.read_text())
        assert Attempt.objects.get().end_code == "worker_shutdown"


@pytest.mark.parametrize("mode", ["obey", pytest.param("deaf", marks=pytest.mark.slow)])
def test_a_supervisor_that_is_killed_is_told_of_at_once(worker: Callable[..., Worker], site: Site, mode: str) -> None:
    """The trainer, and what it started, dies; the lease has nothing to do with it."""
    with training(worker, site, mode) as (one, run, told):
        os.kill(told.supervisor_pid, signal.SIGKILL)
        assert one.process.wait(timeout=120) == 0
        assert state(run) == (RunState.QUEUED, "worker_lost")
        assert Attempt.objects.get().state == "lost"
        assert one.record() is None
        assert "ended by SIGKILL" in one.log.read_text()


@pytest.mark.slow
def test_a_trainer_that_is_killed(worker: Callable[..., Worker], site: Site) -> None:
    with training(worker, site) as (one, run, told):
        assert told.pid is not None
        os.kill(told.pid, signal.SIGKILL)
        assert one.process.wait(timeout=120) == 0
        assert state(run) == (RunState.QUEUED, "trainer_killed")


@pytest.mark.slow
def test_a_keeper_that_is_killed(worker: Callable[..., Worker], site: Site) -> None:
    with training(worker, site, "deaf") as (one, run, told):
        trainer = process(told.pid or 0)
        assert trainer is not None
        os.kill(trainer.parent, signal.SIGKILL)
        assert one.process.wait(timeout=120) == 0
        assert state(run) == (RunState.QUEUED, "trainer_killed")


@pytest.mark.slow
def test_everything_is_killed_and_the_next_life_tells(worker: Callable[..., Worker], site: Site) -> None:
    with training(worker, site, "deaf") as (one, run, _):
        family = one.below() | {one.process.pid}
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        one.process.wait()
        assert state(run)[0] == RunState.TRAINING
        other = site.launch()
        again = worker(other, "finish")
        assert again.process.wait(timeout=120) == 0
        assert state(other)[0] == RunState.SEALING
        assert state(run) == (RunState.QUEUED, "worker_lost")
        assert not again.runs.joinpath(f"run-{run.pk}", "attempt-1", RECORD).exists()


@pytest.mark.slow
def test_what_survives_sigkill_is_not_forgotten(worker: Callable[..., Worker], site: Site) -> None:
    """The platform knows, and the worker takes no run until it is gone."""
    with training(worker, site, "deaf") as (one, run, told):
        family = one.below() | {one.process.pid}
        keeper_pid = process(told.pid or 0).parent  # type: ignore[union-attr]
        for pid in (one.process.pid, told.supervisor_pid, keeper_pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (one.process.pid, told.supervisor_pid, keeper_pid):
            os.kill(pid, signal.SIGKILL)
        one.process.wait()
        dying = (told.pid or 0, told.supervisor_pid, keeper_pid)
        wait_for(lambda: not any(map(lives, dying)), "the trainer dies with its keeper")
        left = [pid for pid in family if lives(pid)]
        assert left, "the program that it had started"
        other = site.launch()
        hindered = worker(other, "finish", TEST_HANGS="1", TEST_STAY="1")
        wait_for(lambda: Node.objects.get().info["refuses"], "it tells the platform")
        wait_for(lambda: "not claimed" in hindered.log.read_text(), "it has looked at its message")
        hindered.process.terminate()
        assert hindered.process.wait(timeout=120) == 0
        assert "not claimed: SIGKILL has not ended process" in hindered.log.read_text()
        assert all(f"process {pid} (state" in hindered.log.read_text() for pid in left)
        assert (state(run), state(other)[0]) == ((RunState.QUEUED, "worker_lost"), RunState.QUEUED)
        assert hindered.record() is not None
        assert f"process {left[0]} (state" in Node.objects.get().info["refuses"]
        again = worker(other, "finish")
        assert again.process.wait(timeout=120) == 0
        assert state(other)[0] == RunState.SEALING
        assert again.record() is None
        assert Node.objects.get().info["refuses"] == ""


def test_a_stopped_supervisor_writes_nothing_after_its_run_went_on(worker: Callable[..., Worker], site: Site) -> None:
    with training(worker, site, "deaf") as (one, run, told):
        os.kill(told.supervisor_pid, signal.SIGSTOP)

        def lose() -> list[int]:
            """As after a minute of silence; the platform may still be answering the last beat."""
            Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
            return attempts_lost()

        assert wait_for(lose, "the attempt is lost") == [run.pk]
        before = run.events.count()
        os.kill(told.supervisor_pid, signal.SIGCONT)
        assert one.process.wait(timeout=120) == 0
        assert state(run)[0] == RunState.QUEUED
        assert run.events.count() == before
        assert "no longer ours" in one.log.read_text()


@pytest.mark.slow
def test_a_full_disk_takes_no_run(worker: Callable[..., Worker], site: Site) -> None:
    run = site.launch()
    one = worker(run, "finish", COHORT_MIN_FREE_BYTES=str(1 << 60), TEST_STAY="1")
    wait_for(lambda: "not claimed" in one.log.read_text(), "it has looked at its message")
    info = wait_for(lambda: Node.objects.get().info, "it is heard of")
    assert "must be free (COHORT_MIN_FREE_BYTES)" in info["refuses"]
    assert len(info["runs_id"]) == 32
    one.process.terminate()
    assert one.process.wait(timeout=120) == 0
    assert state(run)[0] == RunState.QUEUED
    assert Run.objects.get().fence == 0
    assert "must be free (COHORT_MIN_FREE_BYTES)" in one.log.read_text()


@pytest.mark.slow
def test_a_runs_folder_that_cannot_be_looked_at_takes_no_run(
    worker: Callable[..., Worker], site: Site, tmp_path: Path
) -> None:
    """What died in it may hold the GPU."""
    run, runs = site.launch(), tmp_path / "loop"
    runs.symlink_to(runs)
    one = worker(run, "finish", COHORT_RUNS_DIR=str(runs), TEST_STAY="1")
    wait_for(lambda: f"run {run.pk} not taken" in one.log.read_text(), "it has looked at its message")
    wait_for(lambda: Node.objects.get().info, "it is heard of")
    assert f"{runs} cannot be looked at" in Node.objects.get().info["refuses"]
    one.process.terminate()
    assert one.process.wait(timeout=120) == 0
    assert state(run)[0] == RunState.QUEUED
    assert Run.objects.get().fence == 0


@pytest.mark.slow
def test_labels_reach_the_platform(worker: Callable[..., Worker], site: Site) -> None:
    run = site.launch()
    one = worker(run, "finish", COHORT_LABELS="a100, lab")
    assert one.process.wait(timeout=120) == 0, one.log.read_text()
    assert Node.objects.get().info["labels"] == ["a100", "lab"]


@pytest.mark.slow
def test_a_label_that_cannot_name_a_queue_is_refused(worker: Callable[..., Worker], site: Site) -> None:
    one = worker(site.launch(), "finish", COHORT_LABELS="a100,gpu2")
    assert one.process.wait(timeout=120) != 0
    assert "COHORT_LABELS" in one.log.read_text()
    assert "Traceback" not in one.log.read_text()


@pytest.mark.slow
def test_cancel_before_the_trainer_started(worker: Callable[..., Worker], site: Site, monkeypatch: Any) -> None:
    """While the platform cannot give the data: the wish is met between the tries."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("cohort.worker_api.api.attempt_inputs", fail)
    run = site.launch()
    one = worker(run)
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), lambda: one.log.read_text())
    run_cancel(run=run, actor=site.user)
    assert one.process.wait(timeout=120) == 0
    assert state(run)[0] == RunState.CANCELLED
