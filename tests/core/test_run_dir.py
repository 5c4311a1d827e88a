"""The run directory: readable files beside a spool that never hands out a torn or changed record."""

import json
from pathlib import Path

import pytest

from grpo_core import records, run_dir
from grpo_core.errors import RunDirError
from grpo_core.run_dir import RunDir
from grpo_core.spool import Spooled, SpoolReader, frame, unframe


def event(number: int, size: int = 0) -> records.Event:
    return records.Event(type="test", message=f"event {number}", data={"filler": "x" * size})


def messages(spooled: list[Spooled]) -> list[str]:
    return [json.loads(one.body)["record"]["message"] for one in spooled]


def test_frame_is_length_checksum_body_newline() -> None:
    # CRC32C of "123456789" is the check value of the polynomial, e3069283 (RFC 3720, appendix B.4 uses the same CRC).
    assert frame(b"123456789") == b"00000009 e3069283 123456789\n"
    assert unframe(frame(b"123456789"), 0) == (b"123456789", 28)


def test_torn_frame_is_not_there_yet() -> None:
    whole = frame(b'{"seq": 1}')
    assert all(unframe(whole[:length], 0) is None for length in range(len(whole)))


def test_any_flipped_bit_of_a_whole_frame_raises_or_changes_nothing() -> None:
    whole = frame(b'{"seq": 1, "text": "abc"}')
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            try:
                taken = unframe(bytes(damaged), 0)
            except RunDirError:
                continue
            # Not caught: the same head written otherwise (a capital hex digit, another separator), with the body
            # untouched.
            assert taken is not None
            assert taken[0] == b'{"seq": 1, "text": "abc"}'


def test_writer_and_reader_agree_and_nothing_comes_twice(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True)
    reader = SpoolReader(folder.spool_folder)
    assert reader.read_new() == []
    assert [folder.append(event(n)) for n in (1, 2, 3)] == [1, 2, 3]
    folder.commit()
    first = reader.read_new()
    assert [one.seq for one in first] == [1, 2, 3]
    assert messages(first) == ["event 1", "event 2", "event 3"]
    assert reader.read_new() == []
    folder.append(event(4))
    folder.commit()
    assert [one.seq for one in reader.read_new()] == [4]
    folder.close()


def test_read_new_keeps_to_its_limits_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True)
    for n in range(1, 8):
        folder.append(event(n, 1000))
    folder.close()
    reader = SpoolReader(folder.spool_folder)
    assert [one.seq for one in reader.read_new(limit=2)] == [1, 2]
    assert [one.seq for one in reader.read_new(max_bytes=1)] == [3]
    assert [one.seq for one in reader.read_new()] == [4, 5, 6, 7]


def test_torn_tail_is_not_returned_until_it_is_whole(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True)
    folder.append(event(1))
    folder.append(event(2))
    folder.close()
    (segment,) = folder.spool_folder.glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-5])
    reader = SpoolReader(folder.spool_folder)
    assert [one.seq for one in reader.read_new()] == [1]
    assert reader.read_new() == []
    segment.write_bytes(whole)
    assert [one.seq for one in reader.read_new()] == [2]


def test_flipped_byte_raises(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True)
    folder.append(event(1))
    folder.append(event(2))
    folder.close()
    (segment,) = folder.spool_folder.glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[40] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(RunDirError, match="checksum"):
        SpoolReader(folder.spool_folder).read_new()


def test_missing_record_raises_instead_of_being_skipped(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True)
    for n in (1, 2, 3):
        folder.append(event(n))
    folder.close()
    (segment,) = folder.spool_folder.glob("*.log")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(lines[0] + lines[2])
    with pytest.raises(RunDirError, match="jumps from record 1 to 3"):
        SpoolReader(folder.spool_folder).read_new()


def test_segments_rotate_and_only_acknowledged_ones_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "SEGMENT_BYTES", 1000)
    folder = RunDir.create(tmp_path / "run", spool=True)
    for n in range(1, 10):
        folder.append(event(n, 600))
    folder.commit()

    def segments() -> list[str]:
        return sorted(path.name for path in folder.spool_folder.glob("*.log"))

    # Each record is over 600 bytes, so a segment passes 1,000 bytes with its second record.
    assert segments() == [f"{n:010d}.log" for n in (1, 3, 5, 7, 9)]
    reader = SpoolReader(folder.spool_folder)
    assert [one.seq for one in reader.read_new()] == list(range(1, 10))
    reader.drop_through(3)
    assert segments() == [f"{n:010d}.log" for n in (3, 5, 7, 9)]
    reader.drop_through(4)
    assert segments() == [f"{n:010d}.log" for n in (5, 7, 9)]
    reader.drop_through(9)
    assert segments() == ["0000000009.log"]
    folder.append(event(10))
    folder.close()
    assert [one.seq for one in reader.read_new()] == [10]


def test_readable_files_hold_each_record_where_it_belongs(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run")
    folder.append(event(1))
    for step in (1, 2):
        folder.append(records.StepMetrics(step=step, metrics={"reward": step / 4}))
        folder.append(
            records.Group(
                step=step,
                index=0,
                problem_id="p",
                prompt="q",
                answer="a",
                reward_mean=None,
                reward_std=None,
                signal="unscored",
                samples=(),
            )
        )
    folder.append(records.Outcome(status="finished", message="done", steps_done=2, steps_planned=2))
    folder.close()
    root = tmp_path / "run"
    assert not (root / "spool").exists()
    metrics = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in metrics] == [2, 4]
    assert [line["record"]["metrics"]["reward"] for line in metrics] == [0.25, 0.5]
    assert sorted(path.name for path in (root / "samples").iterdir()) == ["step-000001.jsonl", "step-000002.jsonl"]
    assert json.loads((root / "outcome.json").read_text())["status"] == "finished"


def group(step: int) -> records.Group:
    return records.Group(
        step=step,
        index=0,
        problem_id="p",
        prompt="q" * 1000,
        answer="a",
        reward_mean=None,
        reward_std=None,
        signal="unscored",
        samples=(),
    )


def test_a_spool_over_its_cap_takes_all_but_groups_and_tells_the_gap(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True, spool_cap=3000)
    for step in range(1, 6):
        folder.append(records.StepMetrics(step=step, metrics={"reward": 0.5}))
        folder.append(group(step))
        folder.commit()
    (segment,) = folder.spool_folder.glob("*.log")
    size = segment.stat().st_size
    folder.append(records.Outcome(status="finished", message="done", steps_done=5, steps_planned=5))
    folder.close()
    spooled = [json.loads(one.body) for one in SpoolReader(folder.spool_folder).read_new()]
    assert [one["seq"] for one in spooled] == list(range(1, len(spooled) + 1))
    kinds = [one["record"]["kind"] for one in spooled]
    # Groups of steps 1 and 2 fit under 3,000 bytes, that of step 3 crosses them.
    assert kinds == [*("step", "group") * 3, *("step", "event") * 2, "outcome"]
    assert size > 3000
    gaps = [one["record"] for one in spooled if one["record"]["kind"] == "event"]
    assert [gap["type"] for gap in gaps] == ["samples_dropped"] * 2
    assert [gap["data"] for gap in gaps] == [{"first_step": n, "last_step": n, "groups": 1} for n in (4, 5)]
    assert gaps[0]["message"].startswith("1 group of step 4 could not be sent: ")
    assert len(list((folder.path / "samples").iterdir())) == 5


def test_a_gap_is_told_in_the_commit_that_makes_it(tmp_path: Path) -> None:
    """So that a kill after it, without another group and without an outcome, leaves no gap untold."""
    folder = RunDir.create(tmp_path / "run", spool=True, spool_cap=0)
    folder.append(event(1))
    for step in (1, 1, 2):
        folder.append(group(step))
    folder.commit()
    (told,) = [row for row in folder.events() if row.type == "samples_dropped"]
    assert told.data == {"first_step": 1, "last_step": 2, "groups": 3}
    assert told.message.startswith("3 groups of steps 1 to 2 could not be sent: ")
    assert [one.seq for one in SpoolReader(folder.spool_folder).read_new()] == [1, 2]


def test_an_outcome_comes_after_the_gap_before_it(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True, spool_cap=0)
    folder.append(event(1))
    folder.append(group(1))
    folder.append(records.Outcome(status="stopped", message="", steps_done=1, steps_planned=2))
    folder.close()
    spooled = [json.loads(one.body)["record"] for one in SpoolReader(folder.spool_folder).read_new()]
    assert [one["kind"] for one in spooled] == ["event", "event", "outcome"]
    assert spooled[1]["type"] == "samples_dropped"


def test_groups_go_on_once_the_spool_was_emptied(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run", spool=True, spool_cap=1500)
    for step in (1, 2, 3):
        folder.append(group(step))
        folder.commit()
    for segment in folder.spool_folder.glob("*.log"):
        segment.write_bytes(b"")  # stands for a worker whose records the platform took
    folder.append(event(1))
    folder.commit()
    folder.append(group(4))
    folder.close()
    (segment,) = folder.spool_folder.glob("*.log")
    told = [json.loads(line[18:])["record"] for line in segment.read_bytes().splitlines()]
    assert [one["kind"] for one in told] == ["event", "group"]
    (gap,) = [row for row in folder.events() if row.type == "samples_dropped"]
    assert gap.data == {"first_step": 3, "last_step": 3, "groups": 1}


def test_two_trainers_cannot_write_one_directory(tmp_path: Path) -> None:
    first = RunDir.create(tmp_path / "run")
    with pytest.raises(RunDirError, match="another trainer is at work"):
        RunDir.create(tmp_path / "run")
    first.close()
    RunDir.create(tmp_path / "run").close()


@pytest.mark.parametrize("name", ["outcome.json", "manifest.json", "events.jsonl", "metrics.jsonl", "spool"])
def test_create_refuses_a_used_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path)


def test_a_reopened_folder_stays_as_it_is_until_it_is_gone_on_with(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run")
    folder.append(event(1))
    folder.close()

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}

    before = files()
    again = RunDir.reopen(tmp_path / "run")
    again.append(event(2))
    again.write_config("name: b")
    again.append(records.Outcome(status="failed", message="refused", steps_done=0, steps_planned=2))
    again.close()
    assert files() == before
    again = RunDir.reopen(tmp_path / "run")
    again.append(event(2))
    again.write_config("name: b")
    again.go_on_after(1)
    again.append(event(3))
    again.close()
    assert [record.message for record in again.events()] == ["event 1", "event 2", "event 3"]
    lines = (again.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
    assert again.config_file.read_text() == "name: b"


def test_a_config_is_replaced_whole(tmp_path: Path) -> None:
    """Whoever has the old one open reads it to its end; a file cut off in place would read as empty."""
    folder = RunDir.create(tmp_path / "run")
    folder.write_config("name: a")
    with folder.config_file.open() as old:
        folder.write_config("name: b")
        assert old.read() == "name: a"
    assert folder.config_file.read_text() == "name: b"
    assert [path.name for path in folder.path.glob("config*")] == ["config.yaml"]


def test_unreadable_events_at_the_end_are_left_out_and_others_named(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "run")
    for number in (1, 2):
        folder.append(event(number))
    folder.close()
    path = folder.path / "events.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + bytes(9) + b"\n" + second[:20])
    assert [record.message for record in folder.events()] == ["event 1", "event 2"]
    path.write_bytes(first + bytes(9) + b"\n" + second)
    with pytest.raises(RunDirError, match=r"events\.jsonl line 2 is no record"):
        list(folder.events())


def test_create_takes_a_folder_where_the_worker_laid_inputs(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "config.yaml").write_text("name: a")
    RunDir.create(tmp_path, spool=True).close()
    assert (tmp_path / "spool").is_dir()


def test_create_says_when_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot write"):
        RunDir.create(tmp_path / "file" / "run")
