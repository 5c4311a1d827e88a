"""Earlier attempts' checkpoints leave the disk as the platform names them, and nothing else does."""

from pathlib import Path

import pytest

from grpo_core.wire import OldCheckpoint
from worker.leftovers import Leftovers


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for name in ("step-000004", "step-000005", "final"):
        folder = tmp_path / "attempt-1" / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
    (tmp_path / "attempt-1/inputs/checkpoint-step-000002").mkdir(parents=True)
    (tmp_path / "attempt-1/inputs/problems.jsonl").write_text("{}")
    return tmp_path


def old(path: str, fence: int = 1) -> OldCheckpoint:
    return OldCheckpoint(fence=fence, path=path)


def test_one_at_a_time_and_each_is_told(run_folder: Path) -> None:
    leftovers = Leftovers(run_folder)
    both = [old("checkpoints/step-000004"), old("checkpoints/step-000005")]
    leftovers.clear(both)
    assert leftovers.removed == both[:1]
    assert not (run_folder / "attempt-1/inputs/checkpoint-step-000002").exists(), "a fetched copy is needed no longer"
    leftovers.clear(both)
    assert leftovers.removed == both
    gone = old("checkpoints/step-000001")
    leftovers.clear([gone])
    assert leftovers.removed == [*both, gone], "one that is gone already is told too"
    left = sorted(str(path.relative_to(run_folder)) for path in run_folder.rglob("*") if path.is_file())
    assert left == ["attempt-1/checkpoints/final/state.json", "attempt-1/inputs/problems.jsonl"]


@pytest.mark.parametrize(
    ("path", "fence"),
    [
        ("checkpoints/step-000004", 2),
        ("../attempt-1/checkpoints/step-000004", 1),
        ("checkpoints/final", 1),
        ("inputs", 1),
        ("checkpoints", 1),
    ],
)
def test_what_is_not_here_or_no_checkpoint_is_neither_removed_nor_told(run_folder: Path, path: str, fence: int) -> None:
    before = sorted(run_folder.rglob("*"))
    leftovers = Leftovers(run_folder)
    leftovers.clear([old(path, fence)])
    assert leftovers.removed == []
    assert sorted(run_folder.rglob("*")) == before
