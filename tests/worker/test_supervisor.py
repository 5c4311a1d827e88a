"""One attempt against the real platform, with a real child process that ends in every way a trainer can."""

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.catalog.models import PromptDataset
from cohort.environment import environment
from cohort.review.models import Group, Sample
from cohort.runs.models import Attempt, Node, Run, RunState, StepMetric
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel, run_pause
from grpo_core.wire import BeatReply
from tests.factories.stock import PROBLEMS
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.conftest import Attempted, Attempting, Site
from worker.client import AttemptLink, Refused
from worker.node import refusal
from worker.orphans import sweep


def test_a_whole_run(site: Site, attempt: Attempting) -> None:
    one = attempt("finish")
    finish = one.done.result(timeout=DEADLINE)
    assert finish is not None
    assert (finish.end, finish.exit_status, finish.last_seq) == ("finished", 0, 17)
    run = Run.objects.get()
    assert (run.state, run.step, run.latest_metrics) == (RunState.SEALING, 2, {"reward": 0.75})
    assert Sample.objects.filter(group__run=run).count() == 4
    stored = Attempt.objects.get()
    assert (stored.state, stored.acked_seq) == ("finished", 17)
    assert stored.heartbeat_at is not None
    assert (one.folder / "inputs" / f"{site.dataset.sha256}.jsonl").read_bytes() == PROBLEMS
    assert "a run" in (one.folder / "config.yaml").read_text()
    assert (one.folder / "log.txt").read_text() == "mode finish\n"
    assert run.log_tail == "mode finish"
    with pytest.raises(Refused) as caught:  # as a second message finds it
        attempt("finish", run=run).end()
    assert caught.value.code == "not_waiting"
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize(
    ("mode", "state", "code", "steps", "log"),
    [
        ("die", RunState.QUEUED, "trainer_killed", 3, "mode die\nthree steps done"),
        ("fail", RunState.FAILED, "training_error", 3, "mode fail\nthree steps done"),
        ("silent-death", RunState.FAILED, "trainer_died", 0, "mode silent-death"),
        ("bad-record", RunState.FAILED, "run_dir_error", None, None),
    ],
)
def test_a_trainer_that_does_not_finish(
    attempt: Attempting, mode: str, state: RunState, code: str, steps: int | None, log: str | None
) -> None:
    one = attempt(mode)
    assert one.end() == ("failed", code)
    assert (one.run.state, one.run.error_code, one.run.retries) == (state, code, int(state == RunState.QUEUED))
    assert one.run.reason
    assert session_members(one.pid) == []
    if log is not None:
        assert (StepMetric.objects.count(), one.run.log_tail) == (steps, log), "nothing that was shipped is lost"


def cancel(one: Attempted, site: Site, shutdown: threading.Event) -> None:
    run_cancel(run=one.run, actor=site.actor)


def pause(one: Attempted, site: Site, shutdown: threading.Event) -> None:
    run_pause(run=one.run, actor=site.actor)


def drain(one: Attempted, site: Site, shutdown: threading.Event) -> None:
    Node.objects.update(draining="move")


def shut_down(one: Attempted, site: Site, shutdown: threading.Event) -> None:
    shutdown.set()


@pytest.mark.parametrize(
    ("ask", "mode", "end", "code", "state"),
    [
        (cancel, "obey", "cancelled", "cancelled", RunState.CANCELLED),
        (cancel, "deaf", "cancelled", "cancelled", RunState.CANCELLED),
        (pause, "obey", "paused", "paused", RunState.PAUSED),
        (drain, "obey", "preempted", "drained", RunState.QUEUED),
        (shut_down, "obey", "preempted", "worker_shutdown", RunState.QUEUED),
    ],
)
def test_a_trainer_is_stopped_and_leaves_no_process(
    site: Site,
    attempt: Attempting,
    shutdown: threading.Event,
    ask: Callable[..., None],
    mode: str,
    end: str,
    code: str,
    state: RunState,
) -> None:
    one = attempt(mode, limits={"grace": 0.5} if mode == "deaf" else None)
    assert one.pid in session_members(one.pid)
    ask(one, site, shutdown)
    assert one.end() == (end, code)
    finish = one.done.result()
    assert finish is not None
    if mode == "deaf":
        assert finish.signal == signal.SIGKILL
    assert session_members(one.pid) == []
    assert (one.run.state, one.run.retries, one.run.log_tail) == (state, 0, f"mode {mode}\nthree steps done")
    assert (Attempt.objects.get().state, Attempt.objects.get().end_code) == (end, code)


def test_what_survives_the_end_of_a_trainer_keeps_further_runs_away(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be made on purpose: here SIGKILL is not sent."""
    one = attempt("deaf", limits={"grace": 0.5})
    runs, node = one.supervisor.runs, one.supervisor.platform.node
    with monkeypatch.context() as patch:
        patch.setattr("worker.process._KILL_SECONDS", 0.3)
        patch.setattr("worker.keeper.kill", lambda one, number=0: None)
        patch.setattr("worker.cgroup.Cgroup.kill", lambda group: None)
        run_cancel(run=one.run, actor=site.actor)
        assert one.end() == ("failed", "worker_error")
    assert f"process {one.pid} (state" in refusal(runs, 0, node)
    monkeypatch.setattr("worker.orphans._KILL_AGAIN_SECONDS", 60.0)
    assert [record.survives for record in sweep(runs).values()] == [False]
    assert session_members(one.pid) == []
    assert refusal(runs, 0, node) == ""


def test_a_cancel_goes_before_a_pause_that_came_first(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    heard: list[str] = []
    beat = AttemptLink.beat

    def listened(link: AttemptLink, **values: Any) -> BeatReply:
        reply = beat(link, **values)
        heard.append(reply.desired)
        return reply

    monkeypatch.setattr(AttemptLink, "beat", listened)
    one = attempt("deaf", limits={"grace": 300.0})
    run_pause(run=one.run, actor=site.actor)
    wait_for(lambda: "(pause)" in caplog.text, "the trainer is asked to stop")
    run_cancel(run=one.run, actor=site.actor)
    wait_for(lambda: "cancel" in heard, "the cancel is heard")
    os.kill(one.pid, signal.SIGKILL)  # the end of its grace, which is as long as this test may need
    assert one.end() == ("cancelled", "cancelled")
    assert one.run.state == RunState.CANCELLED


def test_a_stale_fence_kills_at_once_and_writes_nothing(attempt: Attempting) -> None:
    one = attempt("deaf")

    def lose() -> list[int]:
        """As after a minute of silence; a beat may come between the two lines."""
        Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
        return attempts_lost()

    wait_for(lose, "the attempt is lost")
    assert one.end() is None
    assert session_members(one.pid) == []
    assert (one.run.state, one.run.error_code) == (RunState.QUEUED, "worker_lost")
    assert Attempt.objects.get().state == "lost"
    assert Group.objects.filter(run=one.run).count() == 3


# ---------------------------------------------------------------------- what cannot be prepared


def of_another_database(site: Site, run: Run, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("somebody else's")


def of_a_newer_platform(site: Site, run: Run, folder: Path) -> None:
    Run.objects.update(config={**run.config, "from_the_future": 1})


def not_as_announced(site: Site, run: Run, folder: Path) -> None:
    PromptDataset.objects.update(size=len(PROBLEMS), sha256="ab" * 32)
    (environment().home_folder / "artifacts" / "datasets" / ("ab" * 32)).write_bytes(PROBLEMS)


def lost(site: Site, run: Run, folder: Path) -> None:
    PromptDataset.objects.update(sha256="cd" * 32)  # of which there is no file


@pytest.mark.parametrize(
    ("spoil", "code", "named"),
    [
        (of_another_database, "not_prepared", "COHORT_RUNS_DIR"),
        (of_a_newer_platform, "config_error", "from_the_future"),
        (not_as_announced, "not_prepared", "SHA-256"),
        (lost, "not_prepared", "additions"),
    ],
)
def test_what_cannot_be_prepared_starts_no_trainer(
    site: Site,
    attempt: Attempting,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[..., None],
    code: str,
    named: str,
) -> None:
    monkeypatch.setattr("worker.client._ANEW_AFTER", (0.01, 0.01))
    run = site.launch()
    spoil(site, run, tmp_path / "runs" / f"run-{run.pk}" / "attempt-1")
    one = attempt("finish", run=run)
    one.end()
    assert (one.run.state, one.run.error_code, one.run.log_tail) == (RunState.FAILED, code, "")
    assert named in one.run.reason
    assert not (one.folder / "pid").exists()
