"""One attempt whose platform cannot be reached, or does not take what it is sent; the child process is real."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.runs.models import Attempt, RunState
from cohort.runs.reconcile import attempts_lost
from cohort.runs.services import run_cancel
from cohort.worker_api import records
from tests.processes import session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Attempting, Site
from worker.client import Platform


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_an_outage_loses_nothing(
    site: Site, attempt: Attempting, cable: Cable, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer goes on and even ends while the platform cannot be reached; all of it arrives afterwards."""
    with Platform(cable.url, site.node_token) as platform:
        one = attempt("wait-for-file", platform=platform)
        cable.cut()
        wait_for(lambda: "no beat" in caplog.text, "the worker notices")
        (one.folder / "go").touch()
        wait_for(lambda: session_members(one.pid) == [], "the trainer ends by itself")
        wait_for(lambda: "records not sent" in caplog.text, "the worker tries to ship")
        assert not one.done.done()
        cable.mend()
        assert one.end() == ("finished", "ok")
    assert one.run.state == RunState.SEALING
    assert Attempt.objects.get().outcome is not None


def test_a_worker_cut_off_for_too_long_stops_its_trainer(
    site: Site, attempt: Attempting, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = float("inf")

    def monotonic() -> float:
        """A thousand times as fast after the cut."""
        return time.monotonic() + 1000 * max(0.0, time.monotonic() - cut)

    monkeypatch.setattr("worker.supervisor.time", SimpleNamespace(sleep=time.sleep, monotonic=monotonic))
    with Platform(cable.url, site.node_token) as platform:
        one = attempt("obey", platform=platform, limits={"grace": 1e9})
        cable.cut()
        cut = time.monotonic()
        assert one.end() is None
    assert session_members(one.pid) == []
    assert '"stopped"' in (one.folder / "outcome.json").read_text()  # asked, not killed
    assert list((one.folder / "spool").glob("*.log"))  # what was not shipped is still there
    Attempt.objects.update(lease_until=Now())
    assert attempts_lost() == [one.run.pk]


def test_records_that_are_never_taken_end_the_attempt(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform hears every beat and stores no record, as with a proxy or a database that refuses large bodies."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    one = attempt("finish", limits={"silence": 1.0})
    assert one.end() == ("failed", "not_answered")
    assert (one.run.state, one.run.error_code, one.run.log_tail) == (RunState.QUEUED, "not_answered", "mode finish")


@pytest.mark.parametrize(("end", "state"), [("cancelled", RunState.CANCELLED), ("preempted", RunState.QUEUED)])
def test_who_waits_for_the_end_need_not_wait_for_the_last_records(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: Any, end: str, state: RunState
) -> None:
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    one = attempt("finish", limits={"grace": 0.5})
    wait_for(lambda: "records not sent" in caplog.text, "the records are not taken")
    if end == "cancelled":
        run_cancel(run=one.run, actor=site.actor)
    else:
        one.supervisor.stop.set()
    finish = one.end()
    assert finish is not None
    assert (finish[0], one.run.state) == (end, state)


def test_it_beats_and_obeys_while_a_batch_is_on_its_way(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the platform takes its time; on a slow line it is the batch itself that does."""
    caplog.set_level("INFO")
    arrived, answer = threading.Event(), threading.Event()
    ingest = records.batch_ingest

    def slow(**batch: Any) -> int:
        arrived.set()
        answer.wait()
        return ingest(**batch)

    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", slow)
    one = attempt("obey", ready=False)
    try:
        wait_for(arrived.is_set, "a batch is on its way")
        Attempt.objects.update(heartbeat_at=None)
        run_cancel(run=one.run, actor=site.actor)
        wait_for(lambda: "(cancel)" in caplog.text, "it obeys")
        assert Attempt.objects.get().heartbeat_at is not None
    finally:
        answer.set()
    assert one.end() == ("cancelled", "cancelled")


def test_a_cancel_is_heard_while_files_do_not_come(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.attempt_inputs", fail)
    one = attempt("finish")
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    run_cancel(run=one.run, actor=site.actor)
    assert one.end() == ("cancelled", "cancelled")
    assert one.run.state == RunState.CANCELLED
    assert not (one.folder / "pid").exists()


def test_a_finish_that_is_not_taken_keeps_the_attempt_alive(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.attempt_finish", fail)
    one = attempt("finish")
    wait_for(lambda: Attempt.objects.filter(acked_seq=17).exists(), "all records are stored")
    Attempt.objects.update(heartbeat_at=None)
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    monkeypatch.undo()
    assert one.end() == ("finished", "ok")


def test_a_worker_that_leaves_records_behind_is_refused(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells how many records there are, not how many it sent; here it does not wait for the rest, as by a fault."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    monkeypatch.setattr("worker.supervisor._Attempt._ship_rest", lambda attempt: attempt._ship(attempt._beat))
    one = attempt("finish")
    one.end()
    assert (one.run.state, one.run.error_code) == (RunState.FAILED, "platform_refused")
