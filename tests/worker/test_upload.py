"""Checkpoints reach the platform: in parts, gone on with where they broke off, the newest before a run moves on."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, RunState
from cohort.runs.services import run_cancel, run_pause, run_resume
from grpo_core.checkpoint_files import verify_checkpoint
from grpo_core.wire import Refusal
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Making, Site, pid_of
from tests.worker.stand_in import child
from worker.client import Platform, Refused
from worker.uploads import Uploader


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.PART_BYTES", 7000)


def stored(run: Any) -> list[int]:
    found = Checkpoint.objects.filter(run=run, stored_at__isnull=False)
    return list(found.order_by("step").values_list("step", flat=True))


def known(run: Any) -> bool:
    return Checkpoint.objects.filter(run=run).count() == 2


def test_the_newest_is_sent_before_a_pause_is_confirmed(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = supervisor(child("checkpoints"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    assert stored(run) == []  # the first goes after five minutes
    run_pause(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "paused"
    assert stored(run) == [3]
    assert CheckpointFile.objects.filter(run=run, done_at__isnull=False).count() == 2


def test_a_trainer_that_was_told_of_the_shutdown_too_and_was_quicker(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a service manager sends SIGTERM to all processes of the worker at once."""
    hold, resting, over = threading.Event(), threading.Event(), threading.Event()

    def rest(seconds: float) -> None:
        """Between two turns, until all is told: awake, the supervisor would see the shutdown first."""
        if hold.is_set():
            resting.set()
            over.wait(DEADLINE)
        time.sleep(seconds)

    monkeypatch.setattr("worker.supervisor.time", SimpleNamespace(sleep=rest, monotonic=time.monotonic))
    run = site.launch()
    made = supervisor(child("checkpoints"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    pid = pid_of(made, run)
    hold.set()
    assert resting.wait(DEADLINE)
    made.stop.set()
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: session_members(pid) == [], "the trainer ends")
    over.set()
    assert done.result(timeout=DEADLINE).end == "preempted"
    assert stored(run) == [3]
    run.refresh_from_db()
    assert (run.state, run.retries, Attempt.objects.get().end_code) == (RunState.QUEUED, 0, "worker_shutdown")


def test_another_node_goes_on_from_what_was_sent(
    site: Site, supervisor: Making, background: Any, tmp_path: Path
) -> None:
    run = site.launch()
    done = background(lambda: supervisor(child("checkpoints")).run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    run_pause(run=run, actor=site.user)
    done.result(timeout=DEADLINE)
    run.refresh_from_db()
    run_resume(run=run, actor=site.user)
    other = replace(supervisor(child("checkpoints")), runs=tmp_path / "another machine")
    second = background(lambda: other.run(run.pk))
    wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=3).exists(), "it goes on from step 3")
    fetched = other.runs / f"run-{run.pk}" / "attempt-2" / "inputs" / "checkpoint-step-000003"
    assert verify_checkpoint(fetched).step == 3
    assert (fetched / "weights.bin").read_bytes() == bytes([3]) * 20_000
    run_cancel(run=run, actor=site.user)
    assert second.result(timeout=DEADLINE).end == "cancelled"
    assert not fetched.exists()  # the next attempt looks for what an attempt wrote, and fetches what is not here


def test_now_and_then_while_it_trains(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = replace(supervisor(child("checkpoints")), upload_seconds=0.2)
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: 3 in stored(run), "the newest is sent")  # the one before too, where its turn came first
    run_cancel(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "cancelled"


def test_never_where_that_is_wanted(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    made = replace(supervisor(child("checkpoints")), upload_seconds=0.0)
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    run_pause(run=run, actor=site.user)
    done.result(timeout=DEADLINE)
    assert CheckpointFile.objects.count() == 0
    run.refresh_from_db()
    assert run.state == RunState.PAUSED


def test_a_cancelled_run_sends_nothing(site: Site, supervisor: Making, background: Any) -> None:
    run = site.launch()
    done = background(lambda: supervisor(child("checkpoints")).run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    run_cancel(run=run, actor=site.user)
    done.result(timeout=DEADLINE)
    assert CheckpointFile.objects.count() == 0


@pytest.fixture
def cable(site: Site) -> Iterator[Cable]:
    with Cable(site.url) as cable:
        yield cable


def test_an_upload_that_breaks_off_goes_on_where_it_was(
    site: Site, supervisor: Making, background: Any, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cable is cut after the first part of a file; what had arrived is not sent again."""
    from worker.client import AttemptLink

    sent: list[tuple[str, int, int]] = []
    tried: dict[tuple[str, int], int] = {}
    """Also those that arrived and whose answer the cut swallowed."""
    send = AttemptLink.upload

    def watched(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        if part:
            tried[sha256, offset] = len(part)
        reply = send(link, sha256, offset=offset, part=part)
        if part and len([each for each in sent if each[2]]) == 2:
            cable.cut()  # before the third is noted, which the test waits for to mend it
        sent.append((sha256, offset, len(part)))
        return reply

    monkeypatch.setattr(AttemptLink, "upload", watched)
    run = site.launch()
    with Platform(cable.url, site.node_token) as platform:
        made = replace(supervisor(child("checkpoints")), platform=platform, upload_seconds=0.2)
        done = background(lambda: made.run(run.pk))
        wait_for(lambda: len([each for each in sent if each[2]]) == 3, "three parts have arrived")
        cable.mend()
        wait_for(lambda: 3 in stored(run), "the rest arrives")
        run_cancel(run=run, actor=site.user)
        assert done.result(timeout=DEADLINE).end == "cancelled"
    parts = [each for each in sent if each[2]]
    assert len(parts) == len({(sha256, offset) for sha256, offset, _ in parts})
    assert sum(tried.values()) == 4000 + 20_000 * len(stored(run))  # the checkpoints share the smaller file


def test_a_file_that_shrank_is_given_up(
    site: Site, supervisor: Making, background: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = site.launch()
    made = supervisor(child("checkpoints"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    folder = made.runs / f"run-{run.pk}" / "attempt-1" / "checkpoints" / "step-000003"
    (folder / "weights.bin").write_bytes(b"short")
    run_pause(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "paused"
    assert stored(run) == []
    assert "shorter than its manifest says" in caplog.text


def test_a_file_that_was_changed_is_refused_and_given_up(
    site: Site, supervisor: Making, background: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = site.launch()
    made = supervisor(child("checkpoints"))
    done = background(lambda: made.run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    folder = made.runs / f"run-{run.pk}" / "attempt-1" / "checkpoints" / "step-000003"
    (folder / "weights.bin").write_bytes(b"x" * 20_000)
    run_pause(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "paused"
    assert stored(run) == []
    assert "checkpoint of step 3 is not sent" in caplog.text


def test_a_defect_of_ours_does_not_end_the_uploads(
    site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send, failed = Uploader._send_file, list[int]()

    def failing(uploader: Uploader, *args: Any) -> bool:
        if len(failed) < 2:
            failed.append(1)
            raise ZeroDivisionError
        return send(uploader, *args)

    monkeypatch.setattr(Uploader, "_send_file", failing)
    run = site.launch()
    done = background(lambda: supervisor(child("checkpoints")).run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    run_pause(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "paused"
    assert stored(run) == [3]
    assert f"run {run.pk}: checkpoint of step 3 not sent, tried again" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("ended", [False, True], ids=["failing", "the thread has ended"])
def test_a_run_that_moves_without_its_newest_checkpoint_says_so(
    site: Site,
    supervisor: Making,
    background: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ended: bool,
) -> None:
    def failing(uploader: Uploader, *_: Any) -> bool:
        raise Refused(409, Refusal(code="stale_fence", message="no")) if ended else ZeroDivisionError

    monkeypatch.setattr(Uploader, "_send_file", failing)
    run = site.launch()
    done = background(lambda: supervisor(child("checkpoints"), grace=2.0).run(run.pk))
    wait_for(lambda: known(run), "its checkpoints are known")
    run_pause(run=run, actor=site.user)
    assert done.result(timeout=DEADLINE).end == "paused"
    assert f"run {run.pk}: the newest checkpoint did not reach the platform" in caplog.text
