"""One attempt against the real platform, with a real child process that ends in every way a trainer can."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from cohort.catalog.models import PromptDataset
from cohort.review.models import Group, Sample
from cohort.runs.models import Attempt, Node, Run, RunState, StepMetric
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel, run_pause
from grpo_core.wire import BeatReply
from tests.processes import DEADLINE, session_members, wait_for
from tests.web.conftest import PROBLEMS
from tests.worker.conftest import Making, Site, folder_of, pid_of, three_steps_stored
from tests.worker.stand_in import child
from worker.client import AttemptLink, Refused
from worker.node import refusal
from worker.orphans import sweep


def test_a_whole_run(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    made = supervisor(child("finish"))
    finish = see_through(made, run)
    assert finish is not None
    assert (finish.end, finish.exit_status, finish.last_seq) == ("finished", 0, 17)
    run.refresh_from_db()
    assert (run.state, run.step, run.latest_metrics) == (RunState.SEALING, 2, {"reward": 0.75})
    assert Sample.objects.filter(group__run=run).count() == 4
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.acked_seq) == ("finished", 17)
    assert attempt.heartbeat_at is not None
    folder = folder_of(made, run)
    assert (folder / "inputs" / f"{site.dataset.sha256}.jsonl").read_bytes() == PROBLEMS
    assert "a run" in (folder / "config.yaml").read_text()
    assert (folder / "log.txt").read_text() == "mode finish\n"
    assert run.log_tail == "mode finish"


def test_a_killed_trainer_sends_its_run_back_with_its_last_lines(
    site: Site, supervisor: Making, see_through: Any
) -> None:
    run = site.launch()
    made = supervisor(child("die"))
    finish = see_through(made, run)
    assert finish is not None
    assert (finish.end, finish.code, finish.signal) == ("failed", "trainer_killed", 9)
    run.refresh_from_db()
    assert (run.state, run.error_code, run.retries) == (RunState.QUEUED, "trainer_killed", 1)
    assert "SIGKILL" in run.reason
    assert run.log_tail == "mode die\nthree steps done"
    assert (StepMetric.objects.filter(run=run).count(), run.step) == (3, 3)  # nothing that was shipped is lost
    reader = Client()
    reader.force_login(site.user, backend="django.contrib.auth.backends.ModelBackend")
    page = reader.get(f"/p/ours/runs/{run.pk}/").content.decode()
    assert "SIGKILL" in page


def test_a_trainer_that_says_why_it_failed(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    see_through(supervisor(child("fail")), run)
    run.refresh_from_db()
    assert (run.state, run.error_code, run.reason) == (RunState.FAILED, "training_error", "the loss is not a number")


def test_a_trainer_that_dies_before_it_writes_anything(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    see_through(supervisor(child("silent-death")), run)
    run.refresh_from_db()
    assert (run.state, run.error_code, run.log_tail) == (RunState.FAILED, "trainer_died", "mode silent-death")
    assert "status 2" in run.reason


@pytest.mark.parametrize(("mode", "grace"), [("obey", 30.0), ("deaf", 0.5)])
def test_cancel_leaves_no_process(site: Site, supervisor: Making, background: Any, mode: str, grace: float) -> None:
    run = site.launch()
    made = supervisor(child(mode), grace=grace)
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)
    assert pid in session_members(pid)
    run_cancel(run=run, actor=site.user, reason="seen enough")
    finish = done.result(timeout=DEADLINE)
    assert (finish.end, finish.signal) == ("cancelled", None if mode == "obey" else 9)
    assert session_members(pid) == []
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.CANCELLED, "Stopped by alice after 3 steps: seen enough")
    assert run.log_tail == f"mode {mode}\nthree steps done"
    assert Attempt.objects.get().state == "cancelled"


def test_what_survives_the_end_of_a_trainer_keeps_further_runs_away(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be made on purpose: here SIGKILL is not sent."""
    run = site.launch()
    made = supervisor(child("deaf"), grace=0.5)
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)
    with monkeypatch.context() as patch:
        patch.setattr("worker.process._KILL_SECONDS", 0.3)
        patch.setattr("worker.keeper.kill", lambda one, number=0: None)
        patch.setattr("worker.cgroup.Cgroup.kill", lambda group: None)
        run_cancel(run=run, actor=site.user)
        finish = done.result(timeout=DEADLINE)
    assert (finish.end, finish.code) == ("failed", "worker_error")
    assert f"process {pid} (state" in refusal(made.runs, 0, made.platform.node)
    assert f"of run {run.pk} (attempt 1" in refusal(made.runs, 0, made.platform.node)
    monkeypatch.setattr("worker.orphans._KILL_AGAIN_SECONDS", 60.0)
    assert [record.survives for record in sweep(made.runs).values()] == [False]
    assert session_members(pid) == []
    assert refusal(made.runs, 0, made.platform.node) == ""


def test_worker_shutdown_stops_the_trainer_and_says_so(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("obey"))
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)
    made.stop.set()
    assert done.result(timeout=DEADLINE).end == "preempted"
    assert session_members(pid) == []
    run.refresh_from_db()
    assert (run.state, run.retries) == (RunState.QUEUED, 0)
    assert run.reason.startswith("The worker was shut down")
    assert (Attempt.objects.get().state, Attempt.objects.get().end_code) == ("preempted", "worker_shutdown")


def test_pause_stops_the_trainer_and_says_so(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("obey"))
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)
    run_pause(run=run, actor=site.user)
    finish = done.result(timeout=DEADLINE)
    assert (finish.end, finish.code) == ("paused", "paused")
    assert session_members(pid) == []
    run.refresh_from_db()
    assert run.state == RunState.PAUSED


def test_a_drained_node_hands_its_run_on(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("obey"))
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    Node.objects.update(draining="move")
    finish = done.result(timeout=DEADLINE)
    assert (finish.end, finish.code) == ("preempted", "drained")
    run.refresh_from_db()
    assert (run.state, run.retries) == (RunState.QUEUED, 0)


def test_a_cancel_goes_before_a_pause_that_was_asked_first(
    site: Site,
    supervisor: Making,
    background: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    heard: list[str] = []
    beat = AttemptLink.beat

    def listened(link: AttemptLink, **told: Any) -> BeatReply:
        reply = beat(link, **told)
        heard.append(reply.desired)
        return reply

    monkeypatch.setattr(AttemptLink, "beat", listened)
    run = site.launch()
    made = supervisor(child("deaf"), grace=300.0)
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    run_pause(run=run, actor=site.user)
    wait_for(lambda: "stopping the trainer (pause)" in caplog.text, "it is asked to stop")
    run_cancel(run=run, actor=site.user)
    wait_for(lambda: "cancel" in heard, "the cancel is heard")
    os.kill(pid_of(made, run), signal.SIGKILL)  # the end of its grace, which is as long as this test may need
    assert done.result(timeout=DEADLINE).end == "cancelled"
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED


def test_a_stale_fence_kills_at_once_and_writes_nothing(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("deaf"))
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)

    def lose() -> list[int]:
        """As if it had not beaten for a minute; a beat may come between the two lines."""
        Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
        return attempts_lost()

    wait_for(lose, "the attempt is lost")
    assert done.result(timeout=DEADLINE) is None
    assert session_members(pid) == []
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.QUEUED, "worker_lost")
    assert Attempt.objects.get().state == "lost"
    assert Group.objects.filter(run=run).count() == 3


def test_a_second_message_finds_nothing_to_claim(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    made = supervisor(child("finish"))
    see_through(made, run)
    with pytest.raises(Refused) as caught:
        see_through(made, run)
    assert caught.value.code == "not_waiting"
    assert Attempt.objects.count() == 1


def test_a_corrupt_spool_fails_the_run(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    made = supervisor(child("bad-record"))
    see_through(made, run)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "run_dir_error")
    assert session_members(pid_of(made, run)) == []


def test_an_input_that_is_not_what_was_announced(
    site: Site, supervisor: Making, see_through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.client._ANEW_AFTER", (0.01, 0.01))
    run = site.launch()
    PromptDataset.objects.update(size=len(PROBLEMS), sha256="ab" * 32)
    store = Path(os.environ["COHORT_HOME"]) / "artifacts" / "datasets" / ("ab" * 32)
    store.write_bytes(PROBLEMS)
    try:
        made = supervisor(child("finish"))
        see_through(made, run)
    finally:
        store.unlink()
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "not_prepared")
    assert "SHA-256" in run.reason
    assert not (folder_of(made, run) / "pid").exists()


def test_a_folder_of_another_database_is_left_alone(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    made = supervisor(child("finish"))
    folder_of(made, run).mkdir(parents=True)
    (folder_of(made, run) / "log.txt").write_text("somebody else's")
    see_through(made, run)
    run.refresh_from_db()
    assert (run.state, run.error_code, run.log_tail) == (RunState.FAILED, "not_prepared", "")
    assert "COHORT_RUNS_DIR" in run.reason


def test_a_config_this_worker_does_not_know(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    Run.objects.update(config={**run.config, "from_the_future": 1})
    see_through(supervisor(child("finish")), run)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "config_error")
    assert "from_the_future" in run.reason
