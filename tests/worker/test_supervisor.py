"""One attempt against the real platform, with a real child process that ends in every way a trainer can."""

import dataclasses
import os
from collections.abc import Callable, Iterator
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
from grpo_core.wire import Finish
from tests.processes import wait_for
from tests.web.conftest import PROBLEMS
from tests.worker.cable import Cable
from tests.worker.conftest import Making, Site
from tests.worker.stand_in import child
from worker.client import Platform, Refused
from worker.node import refusal
from worker.orphans import sweep
from worker.process import session_members
from worker.supervisor import Supervisor


@pytest.fixture
def see_through(background: Any) -> Callable[[Supervisor, Run], Finish | None]:
    """Sees one attempt through; a supervisor that does not come to an end fails the test."""
    return lambda made, run: background(lambda: made.run(run.pk)).result(timeout=120)


def folder_of(supervisor: Supervisor, run: Run) -> Path:
    return supervisor.runs / f"run-{run.pk}" / "attempt-1"


def pid_of(supervisor: Supervisor, run: Run) -> int:
    return int((folder_of(supervisor, run) / "pid").read_text())


def three_steps_stored(run: Run) -> Callable[[], bool]:
    return lambda: StepMetric.objects.filter(run=run).count() == 3


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
    finish = done.result(timeout=60)
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
        finish = done.result(timeout=60)
    assert (finish.end, finish.code) == ("failed", "worker_error")
    assert f"process {pid} (state" in refusal(made.runs, 0)
    assert f"of run {run.pk} (attempt 1" in refusal(made.runs, 0)
    assert [record.survives for record in sweep(made.runs).values()] == [False]
    assert session_members(pid) == []
    assert refusal(made.runs, 0) == ""


def test_worker_shutdown_stops_the_trainer_and_says_so(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("obey"))
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    pid = pid_of(made, run)
    made.stop.set()
    assert done.result(timeout=60).end == "preempted"
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
    finish = done.result(timeout=60)
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
    finish = done.result(timeout=60)
    assert (finish.end, finish.code) == ("preempted", "drained")
    run.refresh_from_db()
    assert (run.state, run.retries) == (RunState.QUEUED, 0)


def test_a_cancel_goes_before_a_pause_that_was_asked_first(
    site: Site, supervisor: Making, background: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = site.launch()
    made = supervisor(child("deaf"), grace=3.0)
    done = background(lambda: made.run(run.pk))
    wait_for(three_steps_stored(run), "three steps are stored")
    run_pause(run=run, actor=site.user)
    wait_for(lambda: "stopping the trainer (pause)" in caplog.text, "it is asked to stop")
    run_cancel(run=run, actor=site.user)
    assert done.result(timeout=60).end == "cancelled"
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
    assert done.result(timeout=60) is None
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


def test_an_input_that_is_not_what_was_announced(site: Site, supervisor: Making, see_through: Any) -> None:
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


@pytest.fixture
def cable(site: Site) -> Iterator[Cable]:
    """What lies between the worker and the platform."""
    with Cable(site.url) as cable:
        yield cable


def test_an_outage_loses_nothing(
    site: Site, supervisor: Making, background: Any, cable: Cable, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer goes on and even ends while the platform cannot be reached; all of it arrives afterwards."""
    run = site.launch()
    with Platform(cable.url, site.node_token) as platform:
        made = dataclasses.replace(supervisor(child("wait-for-file")), platform=platform)
        done = background(lambda: made.run(run.pk))
        wait_for(three_steps_stored(run), "three steps are stored")
        pid = pid_of(made, run)
        cable.cut()
        wait_for(lambda: "no beat" in caplog.text, "the worker notices")
        (folder_of(made, run) / "go").touch()
        wait_for(lambda: session_members(pid) == [], "the trainer ends by itself")
        wait_for(lambda: "records not sent" in caplog.text, "the worker tries to ship")
        assert not done.done()
        cable.mend()
        assert done.result(timeout=60).end == "finished"
    run.refresh_from_db()
    assert run.state == RunState.SEALING
    assert Attempt.objects.get().outcome is not None


def test_a_worker_cut_off_for_too_long_stops_its_trainer(
    site: Site, supervisor: Making, background: Any, cable: Cable
) -> None:
    run = site.launch()
    with Platform(cable.url, site.node_token) as platform:
        made = dataclasses.replace(supervisor(child("obey"), silence=1.0), platform=platform)
        done = background(lambda: made.run(run.pk))
        wait_for(three_steps_stored(run), "three steps are stored")
        cable.cut()
        assert done.result(timeout=60) is None
    assert session_members(pid_of(made, run)) == []
    assert '"stopped"' in (folder_of(made, run) / "outcome.json").read_text()  # asked, not killed
    assert list((folder_of(made, run) / "spool").glob("*.log"))  # what was not shipped is still there
    Attempt.objects.update(lease_until=Now())
    assert attempts_lost() == [run.pk]


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_records_that_are_never_taken_end_the_attempt_in_words(
    site: Site, supervisor: Making, see_through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform hears every beat and stores no record, as with a proxy or a database that refuses large bodies."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    run = site.launch()
    made = supervisor(child("finish"), silence=1.0)
    assert see_through(made, run).end == "failed"
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.QUEUED, "not_answered")
    assert "/records: the platform answered 500" in run.reason
    assert "stay in the worker's spool" in run.reason
    assert run.log_tail == "mode finish"


@pytest.mark.parametrize("way", ["cancel", "shutdown"])
def test_who_waits_for_the_end_need_not_wait_for_the_last_records(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, way: str
) -> None:
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    run = site.launch()
    made = supervisor(child("finish"), silence=900.0, grace=0.5)
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: "records not sent" in caplog.text, "the records are not taken")
    if way == "cancel":
        run_cancel(run=run, actor=site.user)
    else:
        made.stop.set()
    assert done.result(timeout=60).end == ("cancelled" if way == "cancel" else "preempted")
    run.refresh_from_db()
    assert run.state == (RunState.CANCELLED if way == "cancel" else RunState.QUEUED)


def test_a_cancel_is_heard_while_files_do_not_come(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.attempt_inputs", fail)
    run = site.launch()
    made = supervisor(child("finish"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    run_cancel(run=run, actor=site.user)
    assert done.result(timeout=60).end == "cancelled"
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.CANCELLED, "Stopped by alice before its first step")
    assert not (folder_of(made, run) / "pid").exists()


def test_a_file_that_the_platform_has_lost_is_named(site: Site, supervisor: Making, see_through: Any) -> None:
    run = site.launch()
    store = Path(os.environ["COHORT_HOME"]) / "artifacts" / site.dataset.artifact
    away = store.rename(store.with_suffix(".away"))
    try:
        see_through(supervisor(child("finish")), run)
    finally:
        away.rename(store)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "not_prepared")
    assert "the file of the dataset additions cannot be read" in run.reason


def test_a_finish_that_is_not_taken_keeps_the_attempt_alive(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.attempt_finish", fail)
    run = site.launch()
    made = supervisor(child("finish"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: Attempt.objects.filter(acked_seq=17).exists(), "all records are stored")
    Attempt.objects.update(heartbeat_at=None)
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    monkeypatch.undo()
    assert done.result(timeout=60).end == "finished"


def test_a_worker_that_leaves_records_behind_is_refused(
    site: Site, supervisor: Making, see_through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many it found, not how many it sent; here it does not wait for the rest, as by a fault of ours."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    monkeypatch.setattr("worker.supervisor._Attempt._ship_rest", lambda attempt: attempt._ship())
    run = site.launch()
    see_through(supervisor(child("finish")), run)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "platform_refused")
    assert "records were written and 0 are stored" in run.reason
