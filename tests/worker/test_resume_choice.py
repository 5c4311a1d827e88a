"""Which checkpoint an attempt goes on from: the newest that is whole, here or on the platform, and never none in
silence.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.models import Checkpoint, Run, RunState
from cohort.runs.services import run_resume
from grpo_core.checkpoint_files import file_entries, verify_checkpoint, write_manifest
from grpo_core.errors import DiskFullError
from grpo_core.records import CheckpointManifest
from grpo_core.wire import CheckpointOffer, InputFile, Refusal
from tests.worker.conftest import Attempting
from tests.worker.life import claimed
from worker.client import BadFile, Refused, Unreachable
from worker.resume import NoCheckpoint, choose


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
        (folder / "weights.bin").write_bytes(bytes([step]) * 1000)
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
        return choose(claim, runs=self.runs, folder=target, link=link, meanwhile=self.look, patience=1.0)

    def look(self) -> None:
        self.looked += 1


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def flip(folder: Path) -> None:
    content = bytearray((folder / "weights.bin").read_bytes())
    content[500] ^= 1
    (folder / "weights.bin").write_bytes(content)


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
        (disk.folder(new) / "weights.bin").write_bytes(b"short")
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
        (folder / "checkpoint-step-000002" / "weights.bin.part").write_bytes(b"x")
        (folder / "problems.jsonl").write_text("{}")
    disk.choose()
    assert fetched(disk) == ["attempt-4/inputs/checkpoint-step-000002"]
    assert (disk.runs / "run-7" / "attempt-1" / "inputs" / "problems.jsonl").exists()


def test_a_fetch_that_failed_makes_room_for_the_next(disk: Disk) -> None:
    old, new = disk.write(2, here=False, stored=True), disk.write(4, here=False, stored=True)
    del disk.store.held[new.files["weights.bin"].sha256]
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
