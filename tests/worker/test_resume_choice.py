"""Which checkpoint an attempt goes on from: the newest that is whole, here or on the platform, and never none in
silence.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.models import Attempt, Checkpoint, Run, RunState, StepMetric
from cohort.runs.services import run_pause, run_resume
from grpo_core.checkpoint_files import file_entries, verify_checkpoint, write_manifest
from grpo_core.errors import DiskFullError
from grpo_core.records import CheckpointManifest
from grpo_core.wire import CheckpointOffer, InputFile, Refusal
from tests.processes import wait_for
from tests.worker.conftest import Attempting, Site
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


class Place:
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
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def flip(folder: Path) -> None:
    content = bytearray((folder / "weights.bin").read_bytes())
    content[500] ^= 1
    (folder / "weights.bin").write_bytes(content)


def forge(folder: Path) -> None:
    text = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(text.replace('"best": true', '"best": false'))


def test_the_newest_that_is_here(place: Place) -> None:
    old, new = place.write(2), place.write(4, fence=2)
    assert place.choose() == [], "nothing offered is a start from the first step"
    assert place.choose(new, old) == [place.folder(new)]
    assert place.looked > 0


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
def test_a_damaged_one_is_passed_over_and_named_to_the_trainer(place: Place, damage: Callable[[Path], object]) -> None:
    old, new = place.write(2), place.write(4)
    damage(place.folder(new))
    assert place.choose(new, old) == [place.folder(new), place.folder(old)]
    shutil.rmtree(place.folder(old))
    with pytest.raises(NoCheckpoint, match=r"step 4.*step 2"):  # it does not begin anew
        place.choose(new, old)


@pytest.mark.parametrize("here", [True, False])
def test_one_that_is_not_whole_here_is_fetched(place: Place, here: bool) -> None:
    old, new = place.write(2), place.write(4, here=here, stored=True)
    if here:
        (place.folder(new) / "weights.bin").write_bytes(b"short")
    (chosen,) = place.choose(new, old)
    assert chosen == place.runs / "run-7" / "attempt-3" / "inputs" / "checkpoint-step-000004"
    assert (verify_checkpoint(chosen).step, verify_checkpoint(chosen).files) == (4, new.files)


def test_one_that_the_platform_has_lost_is_passed_over(place: Place) -> None:
    old, new = place.write(2), place.write(4, here=False, stored=True)
    place.store.held.clear()
    assert place.choose(new, old) == [place.folder(new), place.folder(old)]


def test_one_of_another_database_is_not_even_shown_to_the_trainer(place: Place) -> None:
    """Its folder has the same name, and it is whole."""
    old, new = place.write(2), place.write(4)
    foreign = new.model_copy(update={"files": old.files})
    assert place.choose(foreign, old) == [place.folder(old)]


def test_a_platform_that_is_away_is_no_reason_to_take_an_older_one(place: Place) -> None:
    old, new = place.write(2), place.write(4, here=False, stored=True)
    place.store.broken = Unreachable("nobody there")
    with pytest.raises(Unreachable):
        place.choose(new, old)


@pytest.mark.parametrize("path", ["/etc", "../../x", ""])
def test_an_offer_that_leads_out_of_its_folder(place: Place, path: str) -> None:
    with pytest.raises(BadFile):
        place.choose(place.write(2).model_copy(update={"path": path}))


def test_a_wish_to_stop_is_met_while_a_large_checkpoint_is_read(place: Place) -> None:
    def stop() -> None:
        raise ZeroDivisionError

    offer = place.write(2)
    place.look = stop  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        place.choose(offer)


def test_a_fetch_that_finds_no_room_is_not_begun(place: Place) -> None:
    offer = place.write(4, here=False, stored=True)
    files = {name: entry.model_copy(update={"size": 2**60}) for name, entry in offer.files.items()}
    with pytest.raises(DiskFullError, match="step 4"):
        place.choose(offer.model_copy(update={"files": files}))
    assert place.looked == 0


def fetched(place: Place) -> list[str]:
    return sorted(
        str(path.relative_to(place.runs / "run-7")) for path in place.runs.glob("run-7/*/inputs/checkpoint-*")
    )


def test_what_earlier_attempts_fetched_is_removed(place: Place) -> None:
    """Theirs could not, where their worker was killed. A later attempt's is not touched, for it has taken over."""
    for fence in (1, 2, 4):
        folder = place.runs / "run-7" / f"attempt-{fence}" / "inputs"
        (folder / "checkpoint-step-000002").mkdir(parents=True)
        (folder / "checkpoint-step-000002" / "weights.bin.part").write_bytes(b"x")
        (folder / "problems.jsonl").write_text("{}")
    place.choose()
    assert fetched(place) == ["attempt-4/inputs/checkpoint-step-000002"]
    assert (place.runs / "run-7" / "attempt-1" / "inputs" / "problems.jsonl").exists()


def test_a_fetch_that_failed_makes_room_for_the_next(place: Place) -> None:
    old, new = place.write(2, here=False, stored=True), place.write(4, here=False, stored=True)
    del place.store.held[new.files["weights.bin"].sha256]
    place.choose(new, old)
    assert fetched(place) == ["attempt-3/inputs/checkpoint-step-000002"]


# ---------------------------------------------------------------------- with the real platform


def test_a_paused_run_goes_on_from_its_newest_checkpoint(site: Site, attempt: Attempting) -> None:
    first = attempt("checkpoints")
    run_pause(run=first.run, actor=site.actor)
    assert first.end() == ("paused", "paused")
    run_resume(run=first.run, actor=site.actor)
    second = attempt("checkpoints", run=first.run)
    wait_for(lambda: Attempt.objects.filter(fence=2, resumed_step=3).exists(), "it goes on from step 3")
    wait_for(lambda: StepMetric.objects.filter(attempt__fence=2).count() == 3, "it trains")
    run_pause(run=Run.objects.get(), actor=site.actor)
    assert second.end() == ("paused", "paused")
    steps = StepMetric.objects.order_by("step").values_list("attempt__fence", "step")
    assert list(steps) == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]


def test_a_run_whose_checkpoints_are_gone_fails(site: Site, attempt: Attempting) -> None:
    first = attempt("checkpoints")
    run_pause(run=first.run, actor=site.actor)
    first.end()
    Checkpoint.objects.update(stored_at=None)
    shutil.rmtree(first.folder / "checkpoints")
    run_resume(run=first.run, actor=site.actor)
    second = attempt("finish", run=first.run)
    assert second.end() == ("failed", "checkpoint_missing")
    run = second.run
    assert (run.state, run.error_code, run.retries) == (RunState.FAILED, "checkpoint_missing", 0)
    assert "step 3" in run.reason
