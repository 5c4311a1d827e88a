"""Checkpoints reach the platform: in parts, gone on with where they broke off, the newest before a run moves on."""

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run, RunState
from cohort.runs.services import run_cancel, run_pause, run_resume
from grpo_core.checkpoint_files import verify_checkpoint
from grpo_core.wire import Refusal
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Attempted, Attempting, Site
from worker.client import AttemptLink, Platform, Refused
from worker.uploads import Uploader


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.PART_BYTES", 7000)


def stored(run: Run) -> list[int]:
    found = Checkpoint.objects.filter(run=run, stored_at__isnull=False)
    return list(found.order_by("step").values_list("step", flat=True))


def pause(begun: Attempted, site: Site) -> None:
    run_pause(run=begun.run, actor=site.actor)
    assert begun.end() == ("paused", "paused")


def cancel(begun: Attempted, site: Site) -> None:
    run_cancel(run=begun.run, actor=site.actor)
    assert begun.end() == ("cancelled", "cancelled")


def test_another_node_goes_on_from_what_was_sent_before_a_pause(
    site: Site, attempt: Attempting, tmp_path: Path
) -> None:
    begun = attempt("checkpoints")
    assert stored(begun.run) == []  # the first goes after five minutes
    pause(begun, site)
    assert stored(begun.run) == [3]
    assert CheckpointFile.objects.filter(run=begun.run, done_at__isnull=False).count() == 2
    run_resume(run=begun.run, actor=site.actor)
    other = attempt("checkpoints", run=begun.run, runs=tmp_path / "another machine")
    wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=3).exists(), "it goes on from step 3")
    fetched = other.folder.with_name("attempt-2") / "inputs" / "checkpoint-step-000003"
    assert verify_checkpoint(fetched).step == 3
    assert (fetched / "weights.bin").read_bytes() == bytes([3]) * 20_000
    cancel(other, site)
    assert not fetched.exists()  # the next attempt looks for what an attempt wrote, and fetches what is not here


def test_a_trainer_that_heard_of_the_shutdown_too_and_was_quicker(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a service manager sends SIGTERM to all processes of the worker at once."""
    hold, resting, over = threading.Event(), threading.Event(), threading.Event()

    def rest(seconds: float) -> None:
        """Between two turns, until all is done: awake, the supervisor would see the shutdown first."""
        if hold.is_set():
            resting.set()
            over.wait(DEADLINE)
        time.sleep(seconds)

    monkeypatch.setattr("worker.supervisor.time", SimpleNamespace(sleep=rest, monotonic=time.monotonic))
    begun = attempt("checkpoints")
    hold.set()
    assert resting.wait(DEADLINE)
    begun.supervisor.stop.set()
    os.kill(begun.pid, signal.SIGTERM)
    wait_for(lambda: session_members(begun.pid) == [], "the trainer ends")
    over.set()
    assert begun.end() == ("preempted", "worker_shutdown")
    assert stored(begun.run) == [3]
    assert (begun.run.state, begun.run.retries) == (RunState.QUEUED, 0)


@pytest.mark.parametrize(("every", "end"), [(0.0, pause), (300.0, cancel)], ids=["never", "cancelled"])
def test_nothing_is_sent_that_is_not_wanted(site: Site, attempt: Attempting, every: float, end: Any) -> None:
    end(attempt("checkpoints", upload_seconds=every), site)
    assert CheckpointFile.objects.count() == 0


def test_an_upload_that_breaks_off_goes_on_where_it_was(
    site: Site, attempt: Attempting, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cable is cut after the first parts of a file; what had arrived is not sent again."""
    sent: list[tuple[str, int]] = []
    tried: dict[tuple[str, int], int] = {}
    """Also those that arrived and whose answer the cut swallowed."""
    send = AttemptLink.upload

    def watched(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        if part:
            tried[sha256, offset] = len(part)
        reply = send(link, sha256, offset=offset, part=part)
        if part and len(sent) == 2:
            cable.cut()  # before the third is noted, which the test waits for to mend it
        if part:
            sent.append((sha256, offset))
        return reply

    monkeypatch.setattr(AttemptLink, "upload", watched)
    with Platform(cable.url, site.node_token) as platform:
        begun = attempt("checkpoints", platform=platform, upload_seconds=0.2)
        wait_for(lambda: len(sent) == 3, "three parts have arrived")
        cable.mend()
        wait_for(lambda: 3 in stored(begun.run), "the rest arrives")
        cancel(begun, site)
    assert len(sent) == len(set(sent))
    assert sum(tried.values()) == 4000 + 20_000 * len(stored(begun.run))  # the checkpoints share the smaller file


@pytest.mark.parametrize("content", [b"short", b"x" * 20_000], ids=["shrank", "changed"])
def test_a_file_that_is_not_as_recorded_is_given_up(
    site: Site, attempt: Attempting, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    begun = attempt("checkpoints")
    (begun.folder / "checkpoints" / "step-000003" / "weights.bin").write_bytes(content)
    pause(begun, site)
    assert stored(begun.run) == []
    assert "step 3" in caplog.text


def test_a_defect_of_ours_does_not_end_the_uploads(
    site: Site, attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send, failed = Uploader._send_file, list[int]()

    def failing(uploader: Uploader, *args: Any) -> bool:
        if len(failed) < 2:
            failed.append(1)
            raise ZeroDivisionError
        return send(uploader, *args)

    monkeypatch.setattr(Uploader, "_send_file", failing)
    begun = attempt("checkpoints")
    pause(begun, site)
    assert stored(begun.run) == [3]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError(), Refused(409, Refusal(code="stale_fence", message="no"))],
    ids=["failing", "the thread has ended"],
)
def test_a_run_that_moves_without_its_newest_checkpoint_says_so(
    site: Site,
    attempt: Attempting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def failing(uploader: Uploader, *_: Any) -> bool:
        raise error

    monkeypatch.setattr(Uploader, "_send_file", failing)
    begun = attempt("checkpoints", limits={"grace": 2.0})
    run_pause(run=begun.run, actor=site.actor)
    begun.end()
    assert "the newest checkpoint did not reach the platform" in caplog.text
