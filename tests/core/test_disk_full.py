"""A disk without room, on a real one of 4 MiB: the run says so, keeps what it had, and goes on once there is some."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core import disk as disk_module
from grpo_core import records
from grpo_core import run_dir as run_dir_module
from grpo_core.checkpoint_files import verify_checkpoint
from grpo_core.disk import need_room
from grpo_core.errors import DiskFullError
from grpo_core.run_dir import RESERVE_BYTES, RunDir
from grpo_core.spool import Spooled, SpoolReader
from tests.disks import small_disk

from .runs import Result, names_of_steps, result, setting

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    with small_disk(tmp_path / "disk", 4 * MIB) as place:
        yield place


def event(size: int) -> records.Event:
    return records.Event(type="test", message="x" * size)


def kinds(spool: Path) -> list[str]:
    read = SpoolReader(spool).read_new(limit=10**6, max_bytes=10**9)
    assert [one.seq for one in read] == list(range(1, len(read) + 1))
    return [json.loads(one.body)["record"]["kind"] for one in read]


@pytest.fixture
def run(disk: Path) -> RunDir:
    """On a disk with a MiB less."""
    run = RunDir.create(disk / "run", spool=True)
    (disk / "ballast").write_bytes(bytes(MIB))
    return run


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
        monkeypatch.setattr(run_dir_module, "write_all", watched, raising=False)

    def look(self) -> None:
        self.seen += self.reader.read_new(limit=10**6, max_bytes=10**9)

    def told(self) -> list[tuple[int, str]]:
        self.look()
        return [(one.seq, json.loads(one.body)["record"]["kind"]) for one in self.seen]


def test_a_reader_never_sees_two_records_under_one_seq(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readable files find room; of the spool only the first two records do, even with the reserve."""
    watching = Watching(run, monkeypatch)
    run.append(records.StepMetrics(step=1, metrics={}))
    run.append(records.StepMetrics(step=2, metrics={}))
    run.append(event(2 * MIB - MIB // 8))
    with pytest.raises(DiskFullError):
        run.commit()
    run.append(OUTCOME)
    run.close()
    assert watching.told() == [(1, "step"), (2, "step"), (3, "outcome")]
    assert kinds(run.spool_folder) == ["step", "step", "outcome"]


def test_the_spool_takes_records_over_again_once_there_is_room(
    disk: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(run, monkeypatch)
    run.append(records.StepMetrics(step=1, metrics={}))
    run.append(event(MIB + MIB // 4))
    with pytest.raises(DiskFullError):
        run.commit()
    (disk / "ballast").unlink()
    run.append(OUTCOME)
    run.close()
    assert watching.told() == [(1, "step"), (2, "event"), (3, "outcome")]
    assert len((run.path / "events.jsonl").read_bytes().splitlines()) == 1
    assert len((run.path / "metrics.jsonl").read_bytes().splitlines()) == 1


def test_a_reader_sees_nothing_of_what_the_readable_files_have_no_room_for(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event's file and the spool are begun before that of the item, which finds no room."""
    watching = Watching(run, monkeypatch)
    run.append(event(10))
    item = {"phase": "before", "suite": "s", "problem_id": "p", "answer": "a", "completion": "c", "score": 1}
    run.append(records.EvalItem(**item, prompt="q" * 3 * MIB, truncated=False, tokens=1))
    with pytest.raises(DiskFullError):
        run.commit()
    assert watching.told() == []
    run.append(OUTCOME)
    run.close()
    assert watching.told() == [(1, "outcome")]


def test_a_checkpoint_asks_for_room_first(disk: Path, runs_home: Path, whole) -> None:
    """The ballast leaves room for a checkpoint before the first step, which is a third of the later ones, and not for
    the next. Without it the run goes on and ends as the one that never saw a full disk."""
    out, run = disk / "run", setting(runs_home, "plain")
    (disk / "ballast").write_bytes(bytes(2 * MIB))
    log = disk.parent / "said"
    status, said = run.told(out, log=log)
    assert status == 10
    assert "left and the checkpoint step-000001 needs" in said
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "disk_full")
    assert names_of_steps(out) == ["step-000000"]
    verify_checkpoint(out / "checkpoints/step-000000")
    assert not list((out / "checkpoints").glob(".*"))
    (disk / "ballast").unlink()
    assert run.train(out, "--resume", checkpoints={"keep": 1}) == 0
    found: Result = result(out)
    assert found == whole("plain")


def test_no_room_is_said_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r"a test needs 1,024\.0 TiB"):
        need_room(tmp_path, 1 << 50, "a test")
