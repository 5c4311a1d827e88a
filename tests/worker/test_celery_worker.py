"""A real Celery worker process takes a real message and runs the real trainer on a tiny model."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cohort.catalog.services import base_model_register
from cohort.celery import app
from cohort.environment import environment
from cohort.runs.models import Attempt, Checkpoint, EvalItem, EvalResult, Node, Run, RunEvent, RunState, StepMetric
from cohort.runs.revoke import node_revoke
from cohort.runs.services import run_cancel
from grpo_core.broker import RUN_ATTEMPT_TASK, TRAIN_QUEUE
from grpo_core.spool import SpoolReader
from tests.processes import DEADLINE, clean_environment, wait_for
from tests.worker.conftest import Site
from tests.worker.queues import take_all

SMALL = {
    "sampling": {"group_size": 2, "prompts_per_step": 2, "max_completion_tokens": 4},
    "engine": {"device": "cpu", "threads": 1},
}


@pytest.fixture
def tiny(site: Site) -> Site:
    """The site with a model that can really be trained."""
    from grpo_core.model.tiny import TinyShape, make_tiny

    folder = environment().models_folder / "tiny-real"
    model, tokenizer = make_tiny(seed=0, shape=TinyShape(hidden=16, layers=1, heads=2, feed_forward=32))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    site.base_model = base_model_register(project=site.project, actor=site.user, name="tiny", path="tiny-real")
    return site


@contextmanager
def worker_process(site: Site, folder: Path, *, token: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`celery -A worker.celery_app worker`, as an operator starts it; ended by SIGTERM."""
    told = {
        "COHORT_URL": site.url,
        "COHORT_NODE_TOKEN": site.node_token if token is None else token,
        "COHORT_BROKER_URL": environment().broker_url,
        "COHORT_HOME": str(environment().home_folder),
        "COHORT_RUNS_DIR": str(folder / "runs"),
    }
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker", "--loglevel", "INFO"],
            env=clean_environment() | told,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended(run: Run) -> bool:
    run.refresh_from_db()
    return run.state in (RunState.SEALING, RunState.FAILED, RunState.CANCELLED)


def test_from_launch_to_sealing(tiny: Site, tmp_path: Path) -> None:
    with worker_process(tiny, tmp_path):
        wait_for(lambda: Node.objects.filter(last_seen_at__isnull=False).exists(), "the idle worker is heard of")
        run = tiny.launch(**SMALL, optim={"steps": 3, "lr": 1e-3})
        wait_for(lambda: ended(run), "the run ends")
    assert run.state == RunState.SEALING, (run.reason, run.log_tail, (tmp_path / "worker.log").read_text())
    assert (run.step, run.steps_total, run.desired) == (3, 3, "run")
    assert [row.step for row in StepMetric.objects.filter(run=run)] == [1, 2, 3]
    assert all("reward" in row.metrics for row in StepMetric.objects.filter(run=run))
    assert run.seconds_per_step is not None
    assert run.seconds_per_step > 0
    assert EvalItem.objects.filter(run=run).count() == 8  # four held-out problems, before and after
    assert set(EvalResult.objects.filter(run=run).values_list("phase", flat=True)) == {"before", "after"}
    checkpoints = Checkpoint.objects.filter(run=run).order_by("seq").values_list("step", "final")
    assert (checkpoints[0], list(checkpoints)[-2:]) == ((0, False), [(3, False), (3, True)])
    attempt = Attempt.objects.get(run=run)
    assert attempt.outcome is not None
    assert attempt.outcome["status"] == "finished"
    assert attempt.manifest is not None
    moves = list(RunEvent.objects.filter(run=run, kind="state").values_list("data__to", flat=True))
    assert moves == ["queued", "starting", "evaluating", "training", "evaluating", "sealing"]
    # The platform holds as many records as the trainer wrote; a run this small fits one segment, which stays.
    spool = SpoolReader(tmp_path / "runs" / f"run-{run.pk}" / "attempt-1" / "spool")
    assert spool.read_new(limit=10**6, max_bytes=2**30)[-1].seq == attempt.acked_seq
    assert tiny.node_token not in (tmp_path / "worker.log").read_text()


@pytest.mark.slow
def test_cancel_reaches_the_real_trainer(tiny: Site, tmp_path: Path) -> None:
    with worker_process(tiny, tmp_path):
        run = tiny.launch(**SMALL, optim={"steps": 1_000_000})
        wait_for(lambda: StepMetric.objects.filter(run=run).exists(), "it trains")
        run_cancel(run=run, actor=tiny.user)
        wait_for(lambda: ended(run), "the run ends")
    assert run.state == RunState.CANCELLED, run.reason
    outcome = Attempt.objects.get(run=run).outcome
    assert outcome is not None
    assert (outcome["status"], outcome["steps_done"]) == ("stopped", run.step)


@pytest.mark.slow
def test_a_worker_that_is_shut_down_hands_its_run_on(tiny: Site, tmp_path: Path) -> None:
    """SIGTERM to the worker's main process alone, as a container's stop does; another machine goes on."""
    (tmp_path / "elsewhere").mkdir()
    with worker_process(tiny, tmp_path) as process:
        run = tiny.launch(**SMALL, optim={"steps": 1_000_000})
        wait_for(lambda: StepMetric.objects.filter(run=run).exists(), "it trains")
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE)
        run.refresh_from_db()
        assert run.state == RunState.QUEUED
    first = Attempt.objects.get()
    assert (first.state, first.end_code) == ("preempted", "worker_shutdown")
    steps = run.step
    assert steps >= 1
    with worker_process(tiny, tmp_path / "elsewhere"):
        run_train_message(run)
        wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=steps).exists(), "it goes on where it was")
        wait_for(lambda: StepMetric.objects.filter(run=run, attempt__fence=2).exists(), "it trains again")
        run.refresh_from_db()
        run_cancel(run=run, actor=tiny.user)
        wait_for(lambda: ended(run), "the run ends")
    numbers = list(StepMetric.objects.filter(run=run).order_by("step").values_list("step", flat=True))
    assert numbers == list(range(1, run.step + 1))


def run_train_message(run: Run) -> None:
    """As the platform's reconciler sends it while a run waits."""
    app.send_task(RUN_ATTEMPT_TASK, args=[run.pk], queue=TRAIN_QUEUE)


def test_a_worker_without_a_token_refuses_to_start(site: Site, tmp_path: Path) -> None:
    with worker_process(site, tmp_path, token="") as process:
        assert process.wait(DEADLINE) != 0
    assert "set COHORT_NODE_TOKEN" in (tmp_path / "worker.log").read_text()


@pytest.mark.slow
def test_a_worker_whose_node_is_revoked_leaves_messages_to_others(site: Site, tmp_path: Path) -> None:
    with worker_process(site, tmp_path) as process:
        wait_for(lambda: Node.objects.filter(last_seen_at__isnull=False).exists(), "the worker is heard of")
        node_revoke(node=Node.objects.get(), actor=None)
        assert process.wait(DEADLINE) == os.EX_NOPERM, (tmp_path / "worker.log").read_text()
        run = site.launch()
    assert take_all(TRAIN_QUEUE) == [[run.pk]]
    assert "refuses this node's token, and the worker stops" in (tmp_path / "worker.log").read_text()


def test_a_worker_without_its_broker_s_address_refuses_to_start(tmp_path: Path) -> None:
    told = clean_environment() | {"COHORT_BROKER_URL_FILE": str(tmp_path / "none")}
    words = [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker"]
    done = subprocess.run(words, env=told, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "The worker cannot start: cannot read COHORT_BROKER_URL_FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_serves_the_queues_of_its_labels() -> None:
    code = "import json; from worker.celery_app import app; print(json.dumps([*app.amqp.queues]))"
    told = clean_environment() | {"COHORT_LABELS": "a100,lab"}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, check=True)
    served = json.loads(done.stdout)
    assert {"train", "train.a100", "train.lab"} <= set(served)
    assert all(name.startswith("train") for name in served)


def test_one_run_at_a_time_acknowledged_before_the_work() -> None:
    """In an interpreter of its own: a second Celery app would become this process's current one."""
    names = ("worker_concurrency", "worker_prefetch_multiplier", "task_acks_late", "accept_content")
    code = f"import json; from worker.celery_app import app; print(json.dumps([app.conf[n] for n in {names}]))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(told.stdout) == [1, 1, False, ["json"]]
