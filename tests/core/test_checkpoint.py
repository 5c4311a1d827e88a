"""A checkpoint is there whole or not at all, and shows when a byte of it changed; what a resume puts aside is durable
before what it was taken from is changed (each fsync is watched: what it was of, and how the run's files stood then)."""

import os
from pathlib import Path

import pytest

from grpo_core import records
from grpo_core.checkpoint_files import MANIFEST, publish_folder, verify_checkpoint
from grpo_core.checkpoints.write import save_weights
from grpo_core.errors import CheckpointError, DiskFullError
from grpo_core.rewind import rewind
from grpo_core.run_dir import RunDir

from .runs import flip
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
