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


STEPS = [records.StepMetrics(step=step, metrics={}) for step in (1, 2)]
ITEM = records.EvalItem(
    phase="before",
    suite="s",
    problem_id="p",
    prompt="q" * 3 * MIB,
    answer="a",
    completion="c",
    score=1,
    truncated=False,
    tokens=1,
)


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
    assert watching.told() == list(enumerate(kept, start=1))
    assert kinds(run.spool_folder) == kept
    if freed:
        assert len((run.path / "events.jsonl").read_bytes().splitlines()) == 1
        assert len((run.path / "metrics.jsonl").read_bytes().splitlines()) == 1


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
