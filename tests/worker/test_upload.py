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
from cohort.runs.services import run_resume
from grpo_core.checkpoint_files import verify_checkpoint
from grpo_core.wire import Refusal
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Attempted, Attempting
from worker.client import AttemptLink, Refused
from worker.uploads import Uploader


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.PART_BYTES", 7000)


def stored(run: Run) -> list[int]:
    rows = Checkpoint.objects.filter(run=run, stored_at__isnull=False)
    return list(rows.order_by("step").values_list("step", flat=True))


def pause(begun: Attempted) -> None:
    begun.pause()
    assert begun.end() == ("paused", "paused")


def cancel(begun: Attempted) -> None:
    begun.cancel()
    assert begun.end() == ("cancelled", "cancelled")


def test_another_node_goes_on_from_what_was_sent_before_a_pause(attempt: Attempting, tmp_path: Path) -> None:
    begun = attempt("checkpoints")
    assert stored(begun.run) == []  # the first goes after five minutes
    pause(begun)
    assert stored(begun.run) == [3]
    assert CheckpointFile.objects.filter(run=begun.run, done_at__isnull=False).count() == 2
    run_resume(run=begun.run, actor=begun.actor)
    other = attempt("checkpoints", run=begun.run, runs=tmp_path / "another machine")
    wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=3).exists(), "it goes on from step 3")
    fetched = other.folder.with_name("attempt-2") / "inputs" / "checkpoint-step-000003"
    assert verify_checkpoint(fetched).step == 3
    assert (fetched / "weights.bin").read_bytes() == bytes([3]) * 20_000
    cancel(other)
    assert not fetched.exists()  # the next attempt looks for what an attempt wrote, and fetches what is not here


def test_a_trainer_that_heard_of_the_shutdown_too_and_was_quicker(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
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
def test_nothing_is_sent_that_is_not_wanted(attempt: Attempting, every: float, end: Any) -> None:
    end(attempt("checkpoints", upload_seconds=every))
    assert CheckpointFile.objects.count() == 0


def test_an_upload_that_breaks_off_goes_on_where_it_was(
    attempt: Attempting, cable: Cable, monkeypatch: pytest.MonkeyPatch
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
    begun = attempt("checkpoints", upload_seconds=0.2)
    wait_for(lambda: len(sent) == 3, "three parts have arrived")
    cable.mend()
    wait_for(lambda: 3 in stored(begun.run), "the rest arrives")
    cancel(begun)
    assert len(sent) == len(set(sent))
    assert sum(tried.values()) == 4000 + 20_000 * len(stored(begun.run))  # the checkpoints share the smaller file


@pytest.mark.parametrize("content", [b"short", b"x" * 20_000], ids=["shrank", "changed"])
def test_a_file_that_is_not_as_recorded_is_given_up(
    attempt: Attempting, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    begun = attempt("checkpoints")
    (begun.folder / "checkpoints" / "step-000003" / "weights.bin").write_bytes(content)
    pause(begun)
    assert stored(begun.run) == []
    assert "step 3" in caplog.text


GONE = Refused(409, Refusal(code="stale_fence", message="no"))


@pytest.mark.parametrize(
    ("error", "failures", "sent"),
    [(ZeroDivisionError(), 2, [3]), (ZeroDivisionError(), 10**9, []), (GONE, 1, [])],
    ids=["a defect of ours", "for ever", "the thread has ended"],
)
def test_what_fails_is_tried_again_and_a_run_that_moves_without_its_newest_checkpoint_says_so(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch, caplog: Any, error: Exception, failures: int, sent: list[int]
) -> None:
    send, left = Uploader._send_file, iter(range(failures))

    def failing(uploader: Uploader, *args: Any) -> bool:
        if next(left, None) is not None:
            raise error
        return send(uploader, *args)

    monkeypatch.setattr(Uploader, "_send_file", failing)
    begun = attempt("checkpoints", limits=None if sent else {"grace": 2.0})
    begun.pause()
    begun.end()
    assert stored(begun.run) == sent
    assert ("the newest checkpoint did not reach the platform" in caplog.text) == (not sent)
    assert ("ZeroDivisionError" in caplog.text) == (error is not GONE)
