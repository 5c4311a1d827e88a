"""One attempt against the real platform, with a real child process that ends in every way a trainer can; also where the
platform cannot be reached, cannot prepare it, or does not take what it is sent.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.background.reconcile import attempts_lost
from cohort.base.environment import environment
from cohort.catalog.models import PromptDataset
from cohort.nodes.models import Node
from cohort.review.models import Group, Sample
from cohort.runs.logs import log_bytes
from cohort.runs.models import Attempt, LogChunk, Run, RunState, StepMetric
from cohort.worker_api import records
from grpo_core.protocol.messages import Beat, BeatReply, LogReply
from tests.factories.stock import PROBLEMS
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Attempted, Attempting, Site
from worker.node.facts import refusal
from worker.platform_client.client import AttemptLink, Refused, Unreachable
from worker.processes.orphans import sweep


def test_a_whole_run(site: Site, attempt: Attempting) -> None:
    begun = attempt("finish")
    finish = begun.done.result(timeout=DEADLINE)
    assert finish is not None
    assert (finish.end, finish.exit_status, finish.last_seq) == ("finished", 0, 17)
    run = Run.objects.get()
    assert (run.state, run.step, run.latest_metrics) == (RunState.SEALING, 2, {"reward": 0.75})
    assert Sample.objects.filter(group__run=run).count() == 4
    stored = Attempt.objects.get()
    assert (stored.state, stored.acked_seq) == ("finished", 17)
    assert stored.heartbeat_at is not None
    assert (begun.folder / "inputs" / f"{site.dataset.sha256}.jsonl").read_bytes() == PROBLEMS
    assert "a run" in (begun.folder / "config.yaml").read_text()
    assert (begun.folder / "log.txt").read_text() == "mode finish\n"
    assert run.log_tail == "mode finish"
    assert b"".join(log_bytes(stored)) == b"mode finish\n"
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
        ("bad-spool", RunState.FAILED, "run_dir_error", None, None),
    ],
)
def test_a_trainer_that_does_not_finish(
    attempt: Attempting, mode: str, state: RunState, code: str, steps: int | None, log: str | None
) -> None:
    begun = attempt(mode)
    assert begun.end() == ("failed", code)
    assert (begun.run.state, begun.run.error_code, begun.run.retries) == (
        state,
        code,
        int(state == RunState.QUEUED),
    )
    assert begun.run.reason
    assert session_members(begun.pid) == []
    if log is not None:
        assert (StepMetric.objects.count(), begun.run.log_tail) == (steps, log), "nothing that was shipped is lost"


def test_a_record_that_the_platform_does_not_take_ends_the_run_with_the_reason(
    attempt: Attempting, caplog: pytest.LogCaptureFixture
) -> None:
    begun = attempt("bad-record")
    assert begun.end() == ("failed", "bad_record")
    fault = "record 8 is not valid: step: 9 comes after step 3"
    assert (begun.run.state, begun.run.error_code, begun.run.retries) == (RunState.FAILED, "bad_record", 0)
    assert fault in begun.run.reason
    assert [fault in line.getMessage() for line in caplog.records if line.levelname == "ERROR"] == [True]
    assert session_members(begun.pid) == []


def drain(begun: Attempted) -> None:
    Node.objects.update(draining="move")


def shut_down(begun: Attempted) -> None:
    begun.supervisor.stop.set()


@pytest.mark.parametrize(
    ("ask", "mode", "end", "code", "state"),
    [
        (Attempted.cancel, "obey", "cancelled", "cancelled", RunState.CANCELLED),
        (Attempted.cancel, "deaf", "cancelled", "cancelled", RunState.CANCELLED),
        (Attempted.pause, "obey", "paused", "paused", RunState.PAUSED),
        (drain, "obey", "preempted", "drained", RunState.QUEUED),
        (shut_down, "obey", "preempted", "worker_shutdown", RunState.QUEUED),
    ],
)
def test_a_trainer_is_stopped_and_leaves_no_process(
    attempt: Attempting, ask: Callable[[Attempted], None], mode: str, end: str, code: str, state: RunState
) -> None:
    begun = attempt(mode, limits={"grace": 0.5} if mode == "deaf" else None)
    assert begun.pid in session_members(begun.pid)
    ask(begun)
    assert begun.end() == (end, code)
    finish = begun.done.result()
    assert finish is not None
    assert mode == "obey" or finish.signal == signal.SIGKILL
    assert session_members(begun.pid) == []
    assert (begun.run.state, begun.run.retries, begun.run.log_tail) == (state, 0, f"mode {mode}\nthree steps done")
    assert (Attempt.objects.get().state, Attempt.objects.get().end_code) == (end, code)


def test_what_survives_the_end_of_a_trainer_keeps_further_runs_away(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be made on purpose: here SIGKILL is not sent."""
    begun = attempt("deaf", limits={"grace": 0.5})
    runs, node = begun.supervisor.settings.runs_folder, begun.supervisor.platform.node
    with monkeypatch.context() as patch:
        patch.setattr("worker.processes.child._KILL_SECONDS", 0.3)
        patch.setattr("worker.processes.reaper.kill", lambda process, number=0: None)
        patch.setattr("grpo_core.runtime.cgroups.Cgroup.kill", lambda group: None)
        begun.cancel()
        assert begun.end() == ("failed", "worker_error")
    assert f"process {begun.pid} (state" in refusal(runs, 0, node)
    monkeypatch.setattr("worker.processes.orphans._KILL_AGAIN_SECONDS", 60.0)
    assert [record.survives for record in sweep(runs).values()] == [False]
    assert session_members(begun.pid) == []
    assert refusal(runs, 0, node) == ""


def test_a_cancel_goes_before_a_pause_that_came_first(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    desired: list[str] = []
    beat = AttemptLink.beat

    def listened(link: AttemptLink, sent: Beat) -> BeatReply:
        reply = beat(link, sent)
        desired.append(reply.desired)
        return reply

    monkeypatch.setattr(AttemptLink, "beat", listened)
    begun = attempt("deaf", limits={"grace": 300.0})
    begun.pause()
    wait_for(lambda: "(pause)" in caplog.text, "the trainer is asked to stop")
    begun.cancel()
    wait_for(lambda: "cancel" in desired, "the cancel is heard")
    os.kill(begun.pid, signal.SIGKILL)  # the end of its grace, which is as long as this test may need
    assert begun.end() == ("cancelled", "cancelled")
    assert begun.run.state == RunState.CANCELLED


def test_a_stale_fence_kills_at_once_and_writes_nothing(attempt: Attempting) -> None:
    begun = attempt("deaf")

    def lose() -> list[int]:
        """As after a minute of silence; a beat may come between the two lines."""
        Attempt.objects.update(lease_until=Now() - timedelta(seconds=1))
        return attempts_lost()

    wait_for(lose, "the attempt is lost")
    assert begun.end() is None
    assert session_members(begun.pid) == []
    assert (begun.run.state, begun.run.error_code) == (RunState.QUEUED, "worker_lost")
    assert Attempt.objects.get().state == "lost"
    assert Group.objects.filter(run=begun.run).count() == 3


# ---------------------------------------------------------------------- what cannot be prepared


def of_another_database(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("somebody else's")


def of_a_newer_platform(run: Run, folder: Path) -> None:
    Run.objects.update(config={**run.config, "from_the_future": 1})


def not_as_announced(run: Run, folder: Path) -> None:
    PromptDataset.objects.update(size=len(PROBLEMS), sha256="ab" * 32)
    (environment().home_folder / "artifacts" / "datasets" / ("ab" * 32)).write_bytes(PROBLEMS)


def lost(run: Run, folder: Path) -> None:
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
    site: Site, attempt: Attempting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, code: str, named: str
) -> None:
    monkeypatch.setattr("worker.platform_client.client._ANEW_AFTER", (0.01, 0.01))
    run = site.launch()
    spoil(run, tmp_path / "runs" / f"run-{run.pk}" / "attempt-1")
    begun = attempt("finish", run=run)
    begun.end()
    assert (begun.run.state, begun.run.error_code, begun.run.log_tail) == (RunState.FAILED, code, "")
    assert named in begun.run.reason
    assert not (begun.folder / "pid").exists()


# ---------------------------------------------------------------------- outages


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_an_outage_loses_nothing(attempt: Attempting, cable: Cable, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer continues and even ends while the platform cannot be reached; all of it arrives afterwards."""
    begun = attempt("wait-for-file")
    cable.cut()
    wait_for(lambda: "no beat" in caplog.text, "the worker notices")
    (begun.folder / "go").touch()
    wait_for(lambda: session_members(begun.pid) == [], "the trainer ends by itself")
    wait_for(lambda: "records not sent" in caplog.text, "the worker tries to ship")
    assert not begun.done.done()
    cable.mend()
    assert begun.end() == ("finished", "ok")
    assert begun.run.state == RunState.SEALING
    assert Attempt.objects.get().outcome is not None
    assert b"".join(log_bytes(Attempt.objects.get())) == (begun.folder / "log.txt").read_bytes()


def test_a_part_of_the_log_whose_answer_is_lost_is_stored_once(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[LogReply] = []
    send = AttemptLink.log

    def lossy(self: AttemptLink, **part: Any) -> LogReply:
        answers.append(send(self, **part))
        if len(answers) == 1:
            raise Unreachable("the answer was lost")
        return answers[-1]

    monkeypatch.setattr(AttemptLink, "log", lossy)
    begun = attempt("wait-for-file")
    wait_for(lambda: "its log is sent later" in caplog.text, "the first part is sent")
    (begun.folder / "go").touch()
    assert begun.end() == ("finished", "ok")
    assert b"".join(log_bytes(Attempt.objects.get())) == (begun.folder / "log.txt").read_bytes() != b""
    assert answers[0] == answers[1], "what was held is asked for, and nothing is sent twice"


def test_a_log_that_the_platform_refuses_ends_no_run(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cohort.worker_api.api.log_append", fail)
    assert attempt("finish").end() == ("finished", "ok")
    assert "its log is sent later" in caplog.text
    monkeypatch.undo()
    assert LogChunk.objects.count() == 0


def test_a_worker_cut_off_for_too_long_stops_its_trainer(
    attempt: Attempting, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = float("inf")

    def monotonic() -> float:
        """A thousand times as fast after the cut."""
        return time.monotonic() + 1000 * max(0.0, time.monotonic() - cut)

    for module in ("loop", "run"):
        clock = SimpleNamespace(sleep=time.sleep, monotonic=monotonic)
        monkeypatch.setattr(f"worker.supervisor.{module}.time", clock)
    begun = attempt("obey", limits={"grace": 1e9})
    cable.cut()
    cut = time.monotonic()
    assert begun.end() is None
    assert session_members(begun.pid) == []
    assert '"stopped"' in (begun.folder / "outcome.json").read_text()  # asked, not killed
    assert list((begun.folder / "spool").glob("*.log"))  # what was not shipped is still there
    Attempt.objects.update(lease_until=Now())
    assert attempts_lost() == [begun.run.pk]


def test_records_that_are_never_taken_end_the_attempt(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform hears every beat and stores no record, as with a proxy or a database that refuses large bodies."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    begun = attempt("finish", limits={"silence": 1.0})
    assert begun.end() == ("failed", "not_answered")
    assert (begun.run.state, begun.run.error_code, begun.run.log_tail) == (
        RunState.QUEUED,
        "not_answered",
        "mode finish",
    )


@pytest.mark.parametrize(
    ("ask", "end", "state"),
    [(Attempted.cancel, "cancelled", RunState.CANCELLED), (shut_down, "preempted", RunState.QUEUED)],
)
def test_who_waits_for_the_end_need_not_wait_for_the_last_records(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: Any, ask: Any, end: str, state: RunState
) -> None:
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    begun = attempt("finish", limits={"grace": 0.5})
    wait_for(lambda: "records not sent" in caplog.text, "the records are not taken")
    ask(begun)
    finish = begun.end()
    assert finish is not None
    assert (finish[0], begun.run.state) == (end, state)


def test_it_beats_and_obeys_while_a_batch_is_on_its_way(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    begun = attempt("obey", ready=False)
    try:
        wait_for(arrived.is_set, "a batch is on its way")
        Attempt.objects.update(heartbeat_at=None)
        begun.cancel()
        wait_for(lambda: "(cancel)" in caplog.text, "it obeys")
        assert Attempt.objects.get().heartbeat_at is not None
    finally:
        answer.set()
    assert begun.end() == ("cancelled", "cancelled")


def test_a_cancel_is_heard_while_files_do_not_come(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.worker_api.api._artifact", fail)
    begun = attempt("finish")
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    begun.cancel()
    assert begun.end() == ("cancelled", "cancelled")
    assert begun.run.state == RunState.CANCELLED
    assert not (begun.folder / "pid").exists()


def test_a_finish_that_is_not_taken_keeps_the_attempt_alive(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.runs.attempts.attempt_finish", fail)
    begun = attempt("finish")
    wait_for(lambda: Attempt.objects.filter(acked_seq=17).exists(), "all records are stored")
    Attempt.objects.update(heartbeat_at=None)
    wait_for(lambda: Attempt.objects.filter(heartbeat_at__isnull=False).exists(), "it beats between the tries")
    monkeypatch.undo()
    assert begun.end() == ("finished", "ok")


def test_a_worker_that_leaves_records_behind_is_refused(attempt: Attempting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells how many records there are, not how many it sent; here it does not wait for the rest, as by a fault."""
    monkeypatch.setattr("cohort.worker_api.records.batch_ingest", fail)
    monkeypatch.setattr("worker.supervisor.run._Attempt._ship_rest", lambda attempt: attempt._ship(attempt._loop.beat))
    begun = attempt("finish")
    begun.end()
    assert (begun.run.state, begun.run.error_code) == (RunState.FAILED, "platform_refused")
