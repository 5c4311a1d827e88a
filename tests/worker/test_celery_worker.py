"""A real Celery worker process takes a real message and runs the real trainer on a tiny model, or one that stands in:
whichever of its processes dies, no trainer is left, and the platform knows within moments.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cohort.base.celery_app import app
from cohort.catalog.run_inputs import ChosenSuite
from cohort.nodes.models import Node
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Run, RunEvent, RunState, StepMetric
from cohort.runs.services import run_cancel
from grpo_core.files.spool import SpoolReader
from grpo_core.protocol.queues import RUN_ATTEMPT_TASK, TRAIN_QUEUE
from tests.factories.suites import add_suite
from tests.processes import DEADLINE, clean_environment, kill_at_once, wait_for
from tests.worker.conftest import Site, celery_worker, wait_offering
from tests.worker.life import lives
from tests.worker.stand_in import stand_in
from worker.processes.orphans import RECORD, ProcessRecord
from worker.processes.reaper import Process, below, process, processes

SMALL = {
    "sampling": {"group_size": 2, "prompts_per_step": 2, "max_completion_tokens": 4},
    "engine": {"device": "cpu", "threads": 1},
}


def wait_ended(run: Run) -> None:
    def ended() -> bool:
        run.refresh_from_db()
        return run.state in (RunState.SEALING, RunState.FAILED, RunState.CANCELLED)

    wait_offering(ended, "the run ends")


def test_from_launch_to_sealing(tiny: Site, tmp_path: Path) -> None:
    with celery_worker(tiny, tmp_path, COHORT_LABELS="a100, lab"):
        wait_for(lambda: Node.objects.filter(last_seen_at__isnull=False).exists(), "the idle worker is heard of")
        assert Node.objects.get().info["labels"] == ["a100", "lab"]
        suite = ChosenSuite(add_suite(tiny.project, tiny.actor))
        run = tiny.launch(suite, **SMALL, optim={"steps": 2, "lr": 1e-3})
        wait_ended(run)
    log = (tmp_path / "worker.log").read_text()
    assert run.state == RunState.SEALING, (run.reason, run.log_tail, log)
    assert (run.step, run.steps_total, run.desired) == (2, 2, "run")
    assert [(row.step, "reward" in row.metrics) for row in StepMetric.objects.filter(run=run)] == [(1, True), (2, True)]
    assert run.seconds_per_step is not None
    assert run.seconds_per_step > 0
    # Four held-out problems and a suite of three items, before and after; the held-out problems while training too.
    items = EvalItem.objects.filter(run=run, phase__in=("before", "after"))
    assert Counter(items.values_list("suite", flat=True)) == {"heldout": 8, "capitals": 6}
    phases = EvalResult.objects.filter(run=run).values_list("phase", flat=True)
    assert set(phases) == {"before", "during", "after"}
    checkpoints = Checkpoint.objects.filter(run=run).order_by("seq").values_list("step", "final")
    assert (checkpoints[0], list(checkpoints)[-2:]) == ((0, False), [(2, False), (2, True)])
    attempt = Attempt.objects.get(run=run)
    assert attempt.outcome is not None
    assert attempt.outcome["status"] == "finished"
    assert attempt.manifest is not None
    moves = list(RunEvent.objects.filter(run=run, kind="state").values_list("data__to", flat=True))
    assert moves == ["queued", "starting", "evaluating", "training", "evaluating", "sealing"]
    # The platform holds as many records as the trainer wrote; a run this small fits one segment, which stays.
    spool = SpoolReader(tmp_path / "runs" / f"run-{run.pk}" / "attempt-1" / "spool")
    assert spool.read_new(limit=10**6, max_bytes=2**30)[-1].seq == attempt.acked_seq
    assert tiny.node_token not in log


@pytest.mark.slow
def test_a_worker_that_is_shut_down_hands_its_run_on(tiny: Site, tmp_path: Path) -> None:
    """SIGTERM to the worker's main process alone, as a container's stop does; another machine continues until a cancel
    reaches its trainer."""
    (tmp_path / "elsewhere").mkdir()
    with celery_worker(tiny, tmp_path) as process:
        run = tiny.launch(**SMALL, optim={"steps": 1_000_000})
        wait_offering(lambda: StepMetric.objects.filter(run=run).exists(), "it trains")
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE)
        run.refresh_from_db()
        assert run.state == RunState.QUEUED
    first = Attempt.objects.get()
    assert (first.state, first.end_code) == ("preempted", "worker_shutdown")
    steps = run.step
    assert steps >= 1
    with celery_worker(tiny, tmp_path / "elsewhere"):
        # As the platform's reconciler sends it while a run waits.
        app.send_task(RUN_ATTEMPT_TASK, args=[run.pk], queue=TRAIN_QUEUE)
        wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=steps).exists(), "it continues where it was")
        wait_for(lambda: StepMetric.objects.filter(run=run, attempt__fence=2).exists(), "it trains again")
        run.refresh_from_db()
        run_cancel(run=run, actor=tiny.actor)
        wait_ended(run)
    assert run.state == RunState.CANCELLED, run.reason
    outcome = Attempt.objects.get(fence=2).outcome
    assert outcome is not None
    assert (outcome["status"], outcome["steps_done"]) == ("stopped", run.step)
    numbers = list(StepMetric.objects.filter(run=run).order_by("step").values_list("step", flat=True))
    assert numbers == list(range(1, run.step + 1))


def newest_record(folder: Path) -> ProcessRecord | None:
    """Of a trainer that was started and has not ended."""
    for file in folder.glob(f"runs/run-*/attempt-1/{RECORD}"):
        with suppress(FileNotFoundError):  # removed since it was listed
            record = ProcessRecord.model_validate_json(file.read_bytes())
            if record.pid is not None:
                return record
    return None


def living(family: list[Process]) -> list[Process]:
    """Those that have not ended; a number alone may be another's by now."""
    living = {(row.pid, row.ticks) for row in processes() if row.lives}
    return [row for row in family if (row.pid, row.ticks) in living]


def state(run: Run) -> tuple[str, str]:
    run.refresh_from_db()
    return run.state, run.error_code


Training = tuple["subprocess.Popen[bytes]", Run, ProcessRecord]


@contextmanager
def training(site: Site, folder: Path, mode: str) -> Iterator[Training]:
    """A worker whose run has stored three steps; afterwards none of its processes may be left."""
    with celery_worker(site, folder, **stand_in(mode)) as worker:
        run = site.launch()
        wait_offering(lambda: run.steps.count() == 3, lambda: (folder / "worker.log").read_text(), worker)
        record = wait_for(lambda: newest_record(folder), "the record is written")
        family = below(worker.pid, processes())
        yield worker, run, record
    wait_for(lambda: not living(family), lambda: f"left: {living(family)}")


def kill_worker(worker: "subprocess.Popen[bytes]", record: ProcessRecord) -> None:
    worker.kill()


def kill_supervisor(worker: "subprocess.Popen[bytes]", record: ProcessRecord) -> None:
    os.kill(record.supervisor_pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "mode", "code", "end"),
    [(kill_worker, "obey", "", "preempted"), (kill_supervisor, "deaf", "worker_lost", "lost")],
)
def test_the_platform_hears_of_a_kill_at_once(
    site: Site, tmp_path: Path, kill: Callable[..., None], mode: str, code: str, end: str
) -> None:
    """Of a worker's the kernel tells its supervisor; the lease has nothing to do with it."""
    with training(site, tmp_path, mode) as (worker, run, record):
        kill(worker, record)
        wait_for(lambda: state(run) == (RunState.QUEUED, code), lambda: (tmp_path / "worker.log").read_text())
        wait_for(lambda: newest_record(tmp_path) is None, "the record is removed")
    assert Attempt.objects.get().state == end


@pytest.mark.slow
def test_what_survives_sigkill_is_not_forgotten(site: Site, tmp_path: Path) -> None:
    """The platform knows, and the worker takes no run until it is gone."""
    log = tmp_path / "worker.log"
    with training(site, tmp_path, "deaf") as (worker, run, record):
        trainer = process(record.pid or 0)
        assert trainer is not None
        family = [child.pid for child in below(worker.pid, processes())]
        dying = (record.supervisor_pid, trainer.parent, worker.pid)
        kill_at_once(dying)
        worker.wait()
        wait_for(lambda: not any(map(lives, (*dying, trainer.pid))), "the trainer dies with its reaper")
        left = [pid for pid in family if lives(pid)]
        assert left, "the program that it had started"
        other = site.launch()
        with celery_worker(site, tmp_path, **stand_in("finish"), PYTHONCHAOS_KILLS="none") as hindered:
            wait_for(lambda: Node.objects.get().info["refuses"], "it tells the platform", hindered)
            wait_for(lambda: "not claimed" in log.read_text(), "it has looked at its message", hindered)
        assert all(f"process {pid} (state" in log.read_text() for pid in left)
        assert (state(run), state(other)[0]) == ((RunState.QUEUED, "worker_lost"), RunState.QUEUED)
        assert newest_record(tmp_path) is not None
        assert f"process {left[0]} (state" in Node.objects.get().info["refuses"]
        with celery_worker(site, tmp_path, **stand_in("finish"), PYTHONCHAOS_KILLS="patient") as again:
            app.send_task(RUN_ATTEMPT_TASK, args=[other.pk], queue=TRAIN_QUEUE)
            wait_for(lambda: state(other)[0] == RunState.SEALING, "it takes runs again", again)
            wait_for(lambda: Node.objects.get().info["refuses"] == "", "and says so", again)
        assert newest_record(tmp_path) is None


@pytest.mark.slow
def test_a_worker_whose_runs_folder_cannot_be_looked_at_takes_no_run(site: Site, tmp_path: Path) -> None:
    """What died in it may hold the GPU."""
    loop, log = tmp_path / "loop", tmp_path / "worker.log"
    loop.symlink_to(loop)
    run = site.launch()
    with celery_worker(site, tmp_path, COHORT_RUNS_DIR=str(loop)) as worker:
        wait_for(lambda: f"run {run.pk} not taken" in log.read_text(), "it has looked at its message", worker)
        info = wait_for(lambda: Node.objects.get().info, "it is heard of", worker)
        assert str(loop) in info["refuses"]
    assert (state(run)[0], run.fence) == (RunState.QUEUED, 0)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"COHORT_URL": "http://127.0.0.1:1", "COHORT_BROKER_URL": "filesystem://"}, "COHORT_NODE_TOKEN"),
        ({"COHORT_BROKER_URL_FILE": "/none"}, "COHORT_BROKER_URL_FILE"),
        ({"COHORT_LABELS": "a100,gpu2"}, "COHORT_LABELS"),  # which cannot name a queue
    ],
)
def test_a_worker_without_a_setting_refuses_to_start(tmp_path: Path, variables: dict[str, str], named: str) -> None:
    words = [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker"]
    own: dict[str, Any] = {"env": clean_environment() | variables | {"COHORT_HOME": str(tmp_path)}, "cwd": tmp_path}
    done = subprocess.run(words, **own, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert named in done.stderr


def test_settings_of_celery() -> None:
    """One run at a time, acknowledged before the work, of the queues of its labels; no outage of a broker ends it.

    In an interpreter of its own: a second Celery app would become this process's current one.
    """
    one_at_a_time = ("worker_concurrency", "worker_prefetch_multiplier", "task_acks_late", "accept_content")
    names = (*one_at_a_time, "broker_connection_max_retries", "broker_channel_error_retry")
    values = f"[[app.conf[n] for n in {names}], [*app.amqp.queues.consume_from]]"
    code = f"from worker.celery_app import app; print(json.dumps({values}))"
    environment = clean_environment() | {"COHORT_LABELS": "a100,lab"}
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], env=environment, capture_output=True, check=True
    )
    values, queues = json.loads(done.stdout)
    assert values == [1, 1, False, ["json"], None, True]
    assert {"train", "train.a100", "train.lab"} <= set(queues)
    assert all(name.startswith("train") for name in queues)
