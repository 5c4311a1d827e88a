"""One attempt whose platform cannot be reached, or does not take what it is told; the child process is real."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.runs.models import Attempt, RunState
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel
from cohort.worker_api import records
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Making, Site, folder_of, pid_of, three_steps_stored
from tests.worker.stand_in import child
from worker.client import Platform


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
        assert done.result(timeout=DEADLINE).end == "finished"
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
        assert done.result(timeout=DEADLINE) is None
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
    assert done.result(timeout=DEADLINE).end == ("cancelled" if way == "cancel" else "preempted")
    run.refresh_from_db()
    assert run.state == (RunState.CANCELLED if way == "cancel" else RunState.QUEUED)


def test_it_beats_and_obeys_while_a_batch_is_on_its_way(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the platform takes its time; on a slow line it is the batch itself that does."""
    caplog.set_level("INFO")
    arrived, answer = threading.Event(), threading.Event()
    ingest = records.batch_ingest

    def slow(**batch: Any) -> int:
        arrived.set()
        assert answer.wait(60)
        return ingest(**batch)

    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", slow)
    run = site.launch()
    done = background(lambda: supervisor(child("obey")).run(run.pk))
    try:
        assert arrived.wait(60)
        Attempt.objects.update(heartbeat_at=None)
        run_cancel(run=run, actor=site.user)
        wait_for(lambda: "stopping the trainer (cancel)" in caplog.text, "it obeys")
        assert Attempt.objects.get().heartbeat_at is not None
    finally:
        answer.set()
    assert done.result(timeout=DEADLINE).end == "cancelled"


def test_a_cancel_is_heard_while_files_do_not_come(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.attempt_inputs", fail)
    run = site.launch()
    made = supervisor(child("finish"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    run_cancel(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "cancelled"
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
    assert done.result(timeout=DEADLINE).end == "finished"


def test_a_worker_that_leaves_records_behind_is_refused(
    site: Site, supervisor: Making, see_through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many it found, not how many it sent; here it does not wait for the rest, as by a fault of ours."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    monkeypatch.setattr("worker.supervisor._Attempt._ship_rest", lambda attempt: attempt._ship(attempt._beat))
    run = site.launch()
    see_through(supervisor(child("finish")), run)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "platform_refused")
    assert "records were written and 0 are stored" in run.reason
