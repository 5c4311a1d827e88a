"""Checkpoints reach the platform: in parts, resumed where they broke off, the newest before a run moves on. And
which one an attempt resumes from: the newest that is whole, here or on the platform, and never none in silence.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.runs.models import Attempt, Checkpoint, CheckpointFile, Run, RunState
from cohort.runs.services import run_resume
from grpo_core.errors import DiskFullError
from grpo_core.files.checkpoint import file_entries, verify_checkpoint, write_manifest
from grpo_core.protocol.messages import CheckpointOffer, InputFile, Refusal
from grpo_core.records.types import CheckpointManifest
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.cable import Cable
from tests.worker.conftest import Attempted, Attempting
from tests.worker.life import claimed
from worker.folders.resume import NoCheckpoint, choose
from worker.platform_client.client import AttemptLink, BadFile, Refused, Unreachable
from worker.platform_client.uploads import Uploader


class Store:
    """The platform's files, by SHA-256; stands in for the link of an attempt."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.broken: Exception | None = None

    def fetch(self, file: InputFile, target: Path, *, meanwhile: Callable[[], None], patience: float) -> None:
        if self.broken is not None:
            raise self.broken
        if file.sha256 not in self.held:
            raise Refused(404, Refusal(code="file_missing", message=f"{file.path} is gone"))
        meanwhile()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.held[file.sha256])


class Disk:
    """A node's runs folder with what attempts of run 7 wrote there."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.store = Store()
        self.looked = 0

    def write(self, step: int, *, fence: int = 1, here: bool = True, stored: bool = False) -> CheckpointOffer:
        path = f"checkpoints/step-{step:06d}"
        folder = self.runs / "run-7" / f"attempt-{fence}" / path
        (folder / "sub").mkdir(parents=True)
        (folder / "weights.txt").write_bytes(bytes([48 + step]) * 1000)
        (folder / "sub" / "state.json").write_text("{}")
        files = file_entries(folder)
        write_manifest(folder, CheckpointManifest(step=step, path=path, files=files, best=True, seconds=1.5))
        if stored:
            self.store.held |= {entry.sha256: (folder / name).read_bytes() for name, entry in files.items()}
        if not here:
            shutil.rmtree(folder)
        return CheckpointOffer(step=step, fence=fence, path=path, files=files, stored=stored)

    def folder(self, offer: CheckpointOffer) -> Path:
        return self.runs / "run-7" / f"attempt-{offer.fence}" / offer.path

    def choose(self, *offers: CheckpointOffer) -> list[Path]:
        claim = claimed(run_id=7, attempt_id=3, fence=3).model_copy(update={"resume": list(offers)})
        target = self.runs / "run-7" / "attempt-3"
        target.mkdir(parents=True, exist_ok=True)
        link: Any = self.store
        return choose(claim, target, link, meanwhile=self.look, patience=1.0)

    def look(self) -> None:
        self.looked += 1


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def flip(folder: Path) -> None:
    content = bytearray((folder / "weights.txt").read_bytes())
    content[500] ^= 1
    (folder / "weights.txt").write_bytes(content)


def forge(folder: Path) -> None:
    text = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(text.replace('"best": true', '"best": false'))


def test_the_newest_that_is_here(disk: Disk) -> None:
    old, new = disk.write(2), disk.write(4, fence=2)
    assert disk.choose() == [], "nothing offered is a start from the first step"
    assert disk.choose(new, old) == [disk.folder(new)]
    assert disk.looked > 0


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        forge,
        lambda folder: (folder / "sub" / "state.json").unlink(),
        lambda folder: (folder / "more").write_text(""),
        lambda folder: (folder / "checkpoint.json").unlink(),
        shutil.rmtree,
    ],
    ids=["flipped", "forged manifest", "missing", "added", "no manifest", "gone"],
)
def test_a_damaged_one_is_passed_over_and_named_to_the_trainer(disk: Disk, damage: Callable[[Path], object]) -> None:
    old, new = disk.write(2), disk.write(4)
    damage(disk.folder(new))
    assert disk.choose(new, old) == [disk.folder(new), disk.folder(old)]
    shutil.rmtree(disk.folder(old))
    with pytest.raises(NoCheckpoint, match=r"step 4.*step 2"):  # it does not begin anew
        disk.choose(new, old)


@pytest.mark.parametrize("here", [True, False])
def test_one_that_is_not_whole_here_is_fetched_or_passed_over_where_the_platform_has_lost_it(
    disk: Disk, here: bool
) -> None:
    old, new = disk.write(2), disk.write(4, here=here, stored=True)
    if here:
        (disk.folder(new) / "weights.txt").write_bytes(b"short")
    (chosen,) = disk.choose(new, old)
    assert chosen == disk.runs / "run-7" / "attempt-3" / "inputs" / "checkpoint-step-000004"
    assert (verify_checkpoint(chosen).step, verify_checkpoint(chosen).files) == (4, new.files)
    shutil.rmtree(chosen)
    disk.store.held.clear()
    assert disk.choose(new, old) == [disk.folder(new), disk.folder(old)]


def test_one_of_another_database_is_not_even_shown_to_the_trainer(disk: Disk) -> None:
    """Its folder has the same name, and it is whole."""
    old, new = disk.write(2), disk.write(4)
    foreign = new.model_copy(update={"files": old.files})
    assert disk.choose(foreign, old) == [disk.folder(old)]


def test_a_platform_that_is_away_is_no_reason_to_take_an_older_one(disk: Disk) -> None:
    old, new = disk.write(2), disk.write(4, here=False, stored=True)
    disk.store.broken = Unreachable("nobody there")
    with pytest.raises(Unreachable):
        disk.choose(new, old)


@pytest.mark.parametrize("path", ["/etc", "../../x", ""])
def test_an_offer_that_leads_out_of_its_folder(disk: Disk, path: str) -> None:
    with pytest.raises(BadFile):
        disk.choose(disk.write(2).model_copy(update={"path": path}))


def test_a_wish_to_stop_is_met_while_a_large_checkpoint_is_read(disk: Disk) -> None:
    def stop() -> None:
        raise ZeroDivisionError

    offer = disk.write(2)
    disk.look = stop  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        disk.choose(offer)


def test_a_fetch_that_finds_no_room_is_not_begun(disk: Disk) -> None:
    offer = disk.write(4, here=False, stored=True)
    files = {name: entry.model_copy(update={"size": 2**60}) for name, entry in offer.files.items()}
    with pytest.raises(DiskFullError, match="step 4"):
        disk.choose(offer.model_copy(update={"files": files}))
    assert disk.looked == 0


def fetched(disk: Disk) -> list[str]:
    return sorted(str(path.relative_to(disk.runs / "run-7")) for path in disk.runs.glob("run-7/*/inputs/checkpoint-*"))


def test_what_earlier_attempts_fetched_is_removed(disk: Disk) -> None:
    """Theirs could not, where their worker was killed. A later attempt's is not touched, for it has taken over."""
    for fence in (1, 2, 4):
        folder = disk.runs / "run-7" / f"attempt-{fence}" / "inputs"
        (folder / "checkpoint-step-000002").mkdir(parents=True)
        (folder / "checkpoint-step-000002" / "weights.txt.part").write_bytes(b"x")
        (folder / "problems.jsonl").write_text("{}")
    disk.choose()
    assert fetched(disk) == ["attempt-4/inputs/checkpoint-step-000002"]
    assert (disk.runs / "run-7" / "attempt-1" / "inputs" / "problems.jsonl").exists()


def test_a_fetch_that_failed_makes_room_for_the_next(disk: Disk) -> None:
    old, new = disk.write(2, here=False, stored=True), disk.write(4, here=False, stored=True)
    del disk.store.held[new.files["weights.txt"].sha256]
    disk.choose(new, old)
    assert fetched(disk) == ["attempt-3/inputs/checkpoint-step-000002"]


def test_a_run_whose_checkpoints_are_gone_fails(attempt: Attempting) -> None:
    first = attempt("checkpoints")
    first.pause()
    first.end()
    Checkpoint.objects.update(stored_at=None)
    shutil.rmtree(first.folder / "checkpoints")
    run_resume(run=first.run, actor=first.actor)
    assert attempt("finish", run=first.run).end() == ("failed", "checkpoint_missing")
    run = Run.objects.get()
    assert (run.state, run.error_code, run.retries) == (RunState.FAILED, "checkpoint_missing", 0)
    assert "step 3" in run.reason


# ---------------------------------------------------------------------- uploads


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.platform_client.uploads.PART_BYTES", 7000)


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
    other = attempt("checkpoints", run=begun.run, runs_dir=tmp_path / "another machine")
    wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=3).exists(), "it resumes from step 3")
    fetched = other.folder.with_name("attempt-2") / "inputs" / "checkpoint-step-000003"
    assert verify_checkpoint(fetched).step == 3
    assert (fetched / "weights.txt").read_bytes() == bytes([48 + 3]) * 20_000
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

    monkeypatch.setattr("worker.supervisor.loop.time", SimpleNamespace(sleep=rest, monotonic=time.monotonic))
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
    (begun.folder / "checkpoints" / "step-000003" / "weights.txt").write_bytes(content)
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
