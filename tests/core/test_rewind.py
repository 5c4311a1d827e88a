"""What a resume puts aside is durable before what it was taken from is changed. A power loss cannot be made here, so
each fsync is watched: what it was of, and how the run's files stood at that moment."""

import os
from pathlib import Path

import pytest

from grpo_core import records
from grpo_core.rewind import rewind
from grpo_core.run_dir import RunDir


def event(number: int) -> records.Event:
    return records.Event(type="test", message=f"event {number}")


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

    def paths(self) -> list[str]:
        return [path for path, _ in self.synced]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two events, each in a commit of its own."""
    folder = RunDir.create(tmp_path / "run")
    folder.write_config("name: a")
    RunDir.write_json(folder.path / "manifest.json", {"of": "before"})
    for number in (1, 2):
        folder.append(event(number))
        folder.commit()
    folder.close()
    return folder


def test_an_end_is_durable_under_its_new_name_before_it_is_cut_off(run: RunDir, monkeypatch) -> None:
    events = run.path / "events.jsonl"
    whole = events.read_bytes()
    watch = Watch(run.path, events, monkeypatch)
    assert rewind(run.path, seq=1, step=0) == run.path / "superseded/1"
    before_the_cut = {path for path, size in watch.synced if size == len(whole)}
    assert {".", "superseded", "superseded/1", "superseded/1/events.jsonl"} <= before_the_cut
    assert watch.synced[-1][0] == "events.jsonl"
    assert events.read_bytes() + (run.path / "superseded/1/events.jsonl").read_bytes() == whole


def test_every_folder_on_the_way_of_what_is_moved_is_durable(run: RunDir, monkeypatch) -> None:
    moved = run.path / "checkpoints/step-000003"
    moved.mkdir()
    watch = Watch(run.path, moved, monkeypatch)
    rewind(run.path, seq=2, step=2)
    before_the_move = {path for path, size in watch.synced if size is not None}
    assert {".", "superseded", "superseded/1"} <= before_the_move
    after_it = [path for path, size in watch.synced if size is None]
    assert after_it == ["superseded/1/checkpoints", "checkpoints"]


def test_the_copies_of_what_is_replaced_are_durable(run: RunDir, monkeypatch) -> None:
    watch = Watch(run.path, run.path / "manifest.json", monkeypatch)
    rewind(run.path, seq=2, step=0)
    assert {"superseded/1/manifest.json", "superseded/1/config.yaml", "superseded/1"} <= set(watch.paths())
    for name in ("manifest.json", "config.yaml"):
        assert (run.path / "superseded/1" / name).read_bytes() == (run.path / name).read_bytes()


def test_a_small_file_has_its_name_durably(run: RunDir, monkeypatch) -> None:
    outcome = run.path / "outcome.json"
    watch = Watch(run.path, outcome, monkeypatch)
    RunDir.write_json(outcome, {"status": "finished"})
    assert watch.paths() == ["outcome.json.tmp", "."]
    assert watch.synced[-1][1] == outcome.stat().st_size
