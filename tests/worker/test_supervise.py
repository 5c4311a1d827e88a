"""The supervisor as a process of its own, under a worker's task: whichever of the two dies, no trainer is left, and the
platform knows within moments.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from cohort.runs.models import Attempt, Node, Run, RunState
from cohort.runs.reconcile import attempts_lost
from tests.processes import DEADLINE, wait_for
from tests.worker.celery_process import worker_variables
from tests.worker.conftest import Site
from tests.worker.life import lives
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
        own = {
            "COHORT_MIN_FREE_BYTES": "0",
            "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
            "TEST_ROOT": str(ROOT),
            "TEST_MODE": mode,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, str(run.pk)],
                env=worker_variables(site, folder) | own | told,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def record(self) -> ProcessRecord | None:
        for file in self.runs.glob(f"run-*/attempt-1/{RECORD}"):
            record = ProcessRecord.model_validate_json(file.read_bytes())
            if record.pid is not None:
                return record
        return None

    def family(self) -> set[int]:
        return {one.pid for one in below(self.process.pid, processes())} | {self.process.pid}

    def ends(self) -> bool:
        """Whether it ends well."""
        return self.process.wait(DEADLINE) == 0

    def end(self) -> None:
        kill(*filter(lives, self.family()))
        self.process.wait()


def kill(*pids: int) -> None:
    """So that none can react to another's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@pytest.fixture
def worker(site: Site, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(run: Run, mode: str = "obey", **variables: str) -> Worker:
        made.append(Worker(site, tmp_path, run, mode, **variables))
        return made[-1]

    yield make
    for one in made:
        one.end()


Training = Callable[..., AbstractContextManager[tuple[Worker, Run, ProcessRecord]]]


@pytest.fixture
def training(worker: Callable[..., Worker], site: Site) -> Training:
    """A run that has stored three steps; afterwards none of its processes may be left."""

    @contextmanager
    def begin(mode: str = "obey") -> Iterator[tuple[Worker, Run, ProcessRecord]]:
        run = site.launch()
        one = worker(run, mode)
        wait_for(lambda: run.steps.count() == 3, lambda: one.log.read_text())
        record = wait_for(one.record, "the record is written")
        family = one.family() - {one.process.pid}
        yield one, run, record
        wait_for(lambda: not any(map(lives, family)), lambda: f"left: {[*filter(lives, family)]}")

    return begin


def keeper_of(record: ProcessRecord) -> int:
    trainer = process(record.pid or 0)
    assert trainer is not None
    return trainer.parent


def state(run: Run) -> tuple[str, str]:
    run.refresh_from_db()
    return run.state, run.error_code


def test_the_whole_way(worker: Callable[..., Worker], site: Site) -> None:
    run = site.launch()
    one = worker(run, "finish", COHORT_LABELS="a100, lab")
    assert one.ends(), one.log.read_text()
    assert state(run) == (RunState.SEALING, "")
    assert one.record() is None
    assert site.node_token not in one.log.read_text()
    assert Node.objects.get().info["labels"] == ["a100", "lab"]


@pytest.mark.parametrize("asked", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["killed", "asked"])
def test_a_worker_that_ends_preempts(training: Training, asked: bool) -> None:
    """Of one that is killed the kernel tells its supervisor."""
    with training() as (one, run, _):
        one.process.send_signal(signal.SIGTERM if asked else signal.SIGKILL)
        assert one.ends() == asked
        wait_for(lambda: state(run)[0] == RunState.QUEUED, lambda: one.log.read_text())
        assert (Attempt.objects.get().state, Attempt.objects.get().end_code) == ("preempted", "worker_shutdown")
        wait_for(lambda: one.record() is None, "the record is removed")


def supervisor_of(record: ProcessRecord) -> int:
    return record.supervisor_pid


def trainer_of(record: ProcessRecord) -> int:
    return record.pid or 0


@pytest.mark.parametrize(
    ("killed", "mode", "code", "end"),
    [
        (supervisor_of, "obey", "worker_lost", "lost"),
        pytest.param(supervisor_of, "deaf", "worker_lost", "lost", marks=pytest.mark.slow),
        pytest.param(trainer_of, "obey", "trainer_killed", "failed", marks=pytest.mark.slow),
        pytest.param(keeper_of, "deaf", "trainer_killed", "failed", marks=pytest.mark.slow),
    ],
)
def test_the_platform_hears_of_a_kill_at_once(
    training: Training, killed: Callable[[ProcessRecord], int], mode: str, code: str, end: str
) -> None:
    """The trainer, and what it started, dies; the lease has nothing to do with it."""
    with training(mode) as (one, run, record):
        os.kill(killed(record), signal.SIGKILL)
        assert one.ends()
        assert state(run) == (RunState.QUEUED, code)
        assert Attempt.objects.get().state == end
        assert one.record() is None


@pytest.mark.slow
def test_everything_is_killed_and_the_next_life_tells(
    training: Training, worker: Callable[..., Worker], site: Site
) -> None:
    with training("deaf") as (one, run, _):
        kill(*one.family())
        one.process.wait()
        assert state(run)[0] == RunState.TRAINING
        other = site.launch()
        again = worker(other, "finish")
        assert again.ends()
        assert state(other)[0] == RunState.SEALING
        assert state(run) == (RunState.QUEUED, "worker_lost")
        assert again.record() is None


@pytest.mark.slow
def test_what_survives_sigkill_is_not_forgotten(training: Training, worker: Callable[..., Worker], site: Site) -> None:
    """The platform knows, and the worker takes no run until it is gone."""
    with training("deaf") as (one, run, record):
        family = one.family()
        dying = (record.supervisor_pid, keeper_of(record), one.process.pid)
        kill(*dying)
        one.process.wait()
        wait_for(lambda: not any(map(lives, (*dying, trainer_of(record)))), "the trainer dies with its keeper")
        left = [pid for pid in family if lives(pid)]
        assert left, "the program that it had started"
        other = site.launch()
        hindered = worker(other, "finish", TEST_HANGS="1", TEST_STAY="1")
        wait_for(lambda: Node.objects.get().info["refuses"], "it tells the platform")
        wait_for(lambda: "not claimed" in hindered.log.read_text(), "it has looked at its message")
        hindered.process.terminate()
        assert hindered.ends()
        assert all(f"process {pid} (state" in hindered.log.read_text() for pid in left)
        assert (state(run), state(other)[0]) == ((RunState.QUEUED, "worker_lost"), RunState.QUEUED)
        assert hindered.record() is not None
        assert f"process {left[0]} (state" in Node.objects.get().info["refuses"]
        again = worker(other, "finish")
        assert again.ends()
        assert state(other)[0] == RunState.SEALING
        assert again.record() is None
        assert Node.objects.get().info["refuses"] == ""


def test_a_stopped_supervisor_writes_nothing_after_its_run_went_on(training: Training) -> None:
    with training("deaf") as (one, run, record):
        os.kill(record.supervisor_pid, signal.SIGSTOP)

        def lose() -> list[int]:
            """As after a minute of silence; the platform may still be answering the last beat."""
            Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
            return attempts_lost()

        assert wait_for(lose, "the attempt is lost") == [run.pk]
        before = run.events.count()
        os.kill(record.supervisor_pid, signal.SIGCONT)
        assert one.ends()
        assert state(run)[0] == RunState.QUEUED
        assert run.events.count() == before


@pytest.mark.slow
@pytest.mark.parametrize("hindrance", ["COHORT_MIN_FREE_BYTES", "COHORT_RUNS_DIR"])
def test_a_worker_that_takes_no_run_tells_why(
    worker: Callable[..., Worker], site: Site, tmp_path: Path, hindrance: str
) -> None:
    """A full disk, or a runs folder that cannot be looked at: what died in it may hold the GPU."""
    run, loop = site.launch(), tmp_path / "loop"
    loop.symlink_to(loop)
    variables = {"COHORT_MIN_FREE_BYTES": str(1 << 60), "COHORT_RUNS_DIR": str(loop)}
    one = worker(run, "finish", **{hindrance: variables[hindrance]}, TEST_STAY="1")
    wait_for(lambda: re.search("not (claimed|taken)", one.log.read_text()), "it has looked at its message")
    info = wait_for(lambda: Node.objects.get().info, "it is heard of")
    assert (hindrance if hindrance == "COHORT_MIN_FREE_BYTES" else str(loop)) in info["refuses"]
    one.process.terminate()
    assert one.ends()
    assert (state(run)[0], Run.objects.get().fence) == (RunState.QUEUED, 0)


@pytest.mark.slow
def test_a_label_that_cannot_name_a_queue_is_refused(worker: Callable[..., Worker], site: Site) -> None:
    one = worker(site.launch(), "finish", COHORT_LABELS="a100,gpu2")
    assert not one.ends()
    assert "COHORT_LABELS" in one.log.read_text()
