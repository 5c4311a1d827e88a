"""A checkpoint is there whole or not at all, and shows when a byte of it changed; what a resume puts aside is durable
before what it was taken from is changed (each fsync is watched: what it was of, and how the run's files stood then).
On a disk without room, a real one of 4 MiB, the run says so, keeps what it had, and continues once there is some."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.errors import CheckpointError, DiskFullError
from grpo_core.files import disk as disk_module
from grpo_core.files.checkpoint import MANIFEST, publish_folder, verify_checkpoint
from grpo_core.files.disk import need_room
from grpo_core.files.rewind import rewind
from grpo_core.files.run_folder import RESERVE_BYTES, RunDir
from grpo_core.files.spool import Spooled, SpoolReader
from grpo_core.records import types as records
from grpo_core.trainer.checkpoints.write import save_weights
from tests.disks import small_disk

from .runs import Result, flip, names_of_steps, result, setting
from .tiny import load, tiny_folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load(tiny_folder(tmp_path_factory.mktemp("models") / "base"))


@pytest.fixture
def saved(policy, tmp_path):
    folder = tmp_path / "checkpoints" / "final"
    assert save_weights(folder, policy, step=3, run_folder=tmp_path).path == "checkpoints/final"
    return folder


def test_every_file_is_listed(saved):
    manifest = verify_checkpoint(saved)
    assert manifest.files.keys() == {path.name for path in saved.iterdir()} - {MANIFEST}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= manifest.files.keys()
    assert manifest.files["model.safetensors"].size == os.path.getsize(saved / "model.safetensors")
    assert not [path for path in saved.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl")]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: flip(folder / "model.safetensors", -1), "model.safetensors was changed"),
        (lambda folder: (folder / "extra.txt").write_text("x"), "extra.txt was added"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / MANIFEST).unlink(), "not a finished checkpoint"),
    ],
)
def test_changed_missing_and_added_files_are_seen(saved, damage, named):
    damage(saved)
    with pytest.raises(CheckpointError, match=named):
        verify_checkpoint(saved)


def test_writing_where_nothing_can_be_written(policy, tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError):
        save_weights(tmp_path / "checkpoints/final", policy, step=1, run_folder=tmp_path)


def test_a_failure_before_the_rename_leaves_the_old_checkpoint(policy, saved, tmp_path, monkeypatch):
    before = verify_checkpoint(saved)

    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", full)
    with pytest.raises(DiskFullError):
        save_weights(saved, policy, step=4, run_folder=tmp_path)
    assert verify_checkpoint(saved) == before


@pytest.mark.parametrize("present", [["old"], [".old.old.tmp"], ["old", ".old.old.tmp"]])
def test_publishing_replaces_the_old_folder_and_what_a_kill_left_aside(tmp_path, present):
    for name in (*present, "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}").write_text("1")
    publish_folder(tmp_path / "new", tmp_path / "old")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["old", "old/of-new"]


# ---------------------------------------------------------------------- what is durable when


class Watch:
    """Every fsync from now on: the path below `root`, and the size of `of` (None: gone) when it came back."""

    def __init__(self, root: Path, of: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[tuple[str, int | None]] = []
        fsync = os.fsync

        def watched(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(root).as_posix()
            self.synced.append((path, of.stat().st_size if of.exists() else None))

        monkeypatch.setattr(os, "fsync", watched)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two events, each in a commit of its own."""
    folder = RunDir.create(tmp_path / "run")
    folder.write_config("name: a")
    RunDir.write_json(folder.path / "manifest.json", {"of": "before"})
    for number in (1, 2):
        folder.append(records.Event(type="test", message=f"event {number}"))
        folder.commit()
    folder.close()
    return folder


def test_an_end_is_durable_under_its_new_name_before_it_is_cut_off(run: RunDir, monkeypatch) -> None:
    events = run.path / "events.jsonl"
    whole = events.read_bytes()
    watch = Watch(run.path, events, monkeypatch)
    assert rewind(run.path, seq=1, step=0) == run.path / "superseded/1"
    before_the_cut = {path for path, size in watch.synced if size == len(whole)}
    # The end, every folder on its way, and copies of what the next run replaces.
    copies = {f"superseded/1/{name}" for name in ("manifest.json", "config.yaml")}
    assert {".", "superseded", "superseded/1", "superseded/1/events.jsonl", *copies} <= before_the_cut
    assert watch.synced[-1][0] == "events.jsonl"
    assert events.read_bytes() + (run.path / "superseded/1/events.jsonl").read_bytes() == whole
    for name in ("manifest.json", "config.yaml"):
        assert (run.path / "superseded/1" / name).read_bytes() == (run.path / name).read_bytes()


def test_every_folder_on_the_way_of_what_is_moved_is_durable(run: RunDir, monkeypatch) -> None:
    moved = run.path / "checkpoints/step-000003"
    moved.mkdir()
    watch = Watch(run.path, moved, monkeypatch)
    rewind(run.path, seq=2, step=2)
    assert {".", "superseded", "superseded/1"} <= {path for path, size in watch.synced if size is not None}
    assert [path for path, size in watch.synced if size is None] == ["superseded/1/checkpoints", "checkpoints"]


def test_a_small_file_has_its_name_durably(run: RunDir, monkeypatch) -> None:
    outcome = run.path / "outcome.json"
    watch = Watch(run.path, outcome, monkeypatch)
    RunDir.write_json(outcome, {"status": "finished"})
    assert watch.synced == [("outcome.json.tmp", None), (".", outcome.stat().st_size)]


MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    with small_disk(tmp_path / "disk", 4 * MIB) as folder:
        yield folder


def event(size: int) -> records.Event:
    return records.Event(type="test", message="x" * size)


def kinds(spool: Path) -> list[str]:
    read = SpoolReader(spool).read_new(limit=10**6, max_bytes=10**9)
    assert [line.seq for line in read] == list(range(1, len(read) + 1))
    return [json.loads(line.body)["record"]["kind"] for line in read]


OUTCOME = records.Outcome(status="failed", code="disk_full", message="no room", steps_done=0, steps_planned=1)


def test_records_that_find_no_room_are_in_no_file_and_the_outcome_is(disk: Path) -> None:
    run = RunDir.create(disk / "run", spool=True)
    run.append(event(10))
    run.commit()
    before = {path: path.read_bytes() for path in (run.path / "events.jsonl", *run.spool_folder.glob("*.log"))}
    (disk / "ballast").write_bytes(bytes(4 * MIB - RESERVE_BYTES - MIB))
    run.append(event(3 * MIB))
    with pytest.raises(DiskFullError):
        run.commit()
    assert {path: path.read_bytes() for path in before} == before
    run.append(OUTCOME)
    run.close()
    assert kinds(run.spool_folder) == ["event", "outcome"]
    assert json.loads(run.outcome_file.read_text())["code"] == "disk_full"
    assert (run.path / "events.jsonl").read_bytes() == before[run.path / "events.jsonl"]


class Watching:
    """A reader that looks at the spool after each write to any of the run's files, whether it found room or not."""

    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.seen = SpoolReader(run.spool_folder), list[Spooled]()
        write = disk_module.write_all

        def watched(descriptor: int, content: bytes) -> None:
            try:
                write(descriptor, content)
            finally:
                self.look()

        monkeypatch.setattr(disk_module, "write_all", watched)

    def look(self) -> None:
        self.seen += self.reader.read_new(limit=10**6, max_bytes=10**9)

    def messages(self) -> list[tuple[int, str]]:
        self.look()
        return [(line.seq, json.loads(line.body)["record"]["kind"]) for line in self.seen]


STEPS = [records.StepMetrics(step=step, metrics={}) for step in (1, 2)]
_ANSWER = {"answer": "a", "completion": "c", "score": 1, "truncated": False, "tokens": 1}
ITEM = records.EvalItem(phase="before", suite="s", problem_id="p", prompt="q" * 3 * MIB, **_ANSWER)


@pytest.mark.parametrize(
    ("appended", "freed", "kept"),
    [
        # The readable files find room; of the spool only the first two records do, even with the reserve.
        ([*STEPS, event(2 * MIB - MIB // 8)], False, ["step", "step", "outcome"]),
        ([STEPS[0], event(MIB + MIB // 4)], True, ["step", "event", "outcome"]),
        # The event's file and the spool are begun before that of the item, which finds no room.
        ([event(10), ITEM], False, ["outcome"]),
    ],
    ids=["spool", "spool, then room", "readable file"],
)
def test_a_reader_never_sees_two_records_under_one_seq(disk, monkeypatch, appended, freed, kept):
    run = RunDir.create(disk / "run", spool=True)
    (disk / "ballast").write_bytes(bytes(MIB))
    watching = Watching(run, monkeypatch)
    for record in appended:
        run.append(record)
    with pytest.raises(DiskFullError):
        run.commit()
    if freed:
        (disk / "ballast").unlink()
    run.append(OUTCOME)
    run.close()
    assert watching.messages() == list(enumerate(kept, start=1))
    assert kinds(run.spool_folder) == kept
    if freed:
        assert len((run.path / "events.jsonl").read_bytes().splitlines()) == 1
        assert len((run.path / "metrics.jsonl").read_bytes().splitlines()) == 1


def test_a_checkpoint_asks_for_room_first(disk: Path, runs_home: Path, whole) -> None:
    """The ballast leaves room for a checkpoint before the first step, which is a third of the later ones, and not for
    the next. Without it the run continues and ends as the one that never saw a full disk."""
    out, run = disk / "run", setting(runs_home, "plain")
    (disk / "ballast").write_bytes(bytes(2 * MIB))
    log = disk.parent / "said"
    status, printed = run.train_captured(out, log=log)
    assert status == 10
    assert "left and the checkpoint step-000001 needs" in printed
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "disk_full")
    assert names_of_steps(out) == ["step-000000"]
    verify_checkpoint(out / "checkpoints/step-000000")
    assert not list((out / "checkpoints").glob(".*"))
    (disk / "ballast").unlink()
    assert run.train(out, "--resume", checkpoints={"keep": 1}) == 0
    got: Result = result(out)
    assert got == whole("plain")


def test_no_room_is_said_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r"a test needs 1125\.9 TB"):
        need_room(tmp_path, 1 << 50, "a test")
