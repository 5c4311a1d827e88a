"""The run directory: readable files beside a spool that never hands out a torn or changed record, whatever segments
come and go under its reader."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_core.errors import RunDirError
from grpo_core.files import run_folder as run_dir
from grpo_core.files.run_folder import RunDir
from grpo_core.files.spool import MAX_BODY_BYTES, SpoolReader, frame, unframe
from grpo_core.records import types as records

Make = Callable[..., RunDir]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **how: RunDir.create(tmp_path / "run", **how)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Each record is over 600 bytes, so that a segment ends with its second one."""
    monkeypatch.setattr(run_dir, "SEGMENT_BYTES", 1000)
    return RunDir.create(tmp_path / "run", spool=True)


def event(number: int, size: int = 0) -> records.Event:
    return records.Event(type="test", message=f"event {number}", data={"filler": "x" * size})


def group(step: int) -> records.Group:
    same = {"problem_id": "p", "answer": "a", "reward_mean": None, "reward_std": None, "signal": "unscored"}
    numbers = {"index": 0, "tokens": 1, "reward": None, "advantage": 0.0}
    sample = records.Sample(**numbers, completion="c", finish_reason="eos", components={})
    return records.Group(**same, step=step, index=0, prompt="q" * 822, samples=(sample,))


def outcome(status: str, steps: int) -> records.Outcome:
    return records.Outcome(status=status, message="done", steps_done=steps, steps_planned=steps)


def append(folder: RunDir, *what: records.Record, commit: bool = True) -> None:
    for record in what:
        folder.append(record)
    if commit:
        folder.commit()


def written(folder: RunDir, *numbers: int) -> None:
    append(folder, *(event(number, 600) for number in numbers))


def seqs(reader: SpoolReader, **limits: int) -> list[int]:
    return [line.seq for line in reader.read_new(**limits)]


def segments(folder: RunDir) -> list[int]:
    """The first record of each."""
    return sorted(int(path.stem) for path in folder.spool_folder.glob("*.log"))


def read(folder: RunDir) -> list[dict[str, object]]:
    return [json.loads(line.body)["record"] for line in SpoolReader(folder.spool_folder).read_new()]


def test_frame_is_length_checksum_body_newline() -> None:
    # CRC32C of "123456789" is the check value of the polynomial, e3069283 (RFC 3720, appendix B.4 uses the same CRC).
    assert frame(b"123456789") == b"00000009 e3069283 123456789\n"
    assert unframe(frame(b"123456789"), 0) == (b"123456789", 28)


def test_any_flipped_bit_of_a_whole_frame_raises_or_changes_nothing() -> None:
    whole = frame(b'{"seq": 1, "text": "abc"}')
    for offset in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            try:
                taken = unframe(bytes(damaged), 0)
            except RunDirError:
                continue
            # Not caught: the same head written otherwise (a capital hex digit, another separator), with the body
            # untouched.
            assert taken is not None
            assert taken[0] == b'{"seq": 1, "text": "abc"}'


def test_writer_and_reader_agree_and_nothing_comes_twice(make: Make) -> None:
    folder = make(spool=True)
    reader = SpoolReader(folder.spool_folder)
    assert reader.read_new() == []
    assert [folder.append(event(n)) for n in (1, 2, 3)] == [1, 2, 3]
    folder.commit()
    first = reader.read_new()
    assert [line.seq for line in first] == [1, 2, 3]
    assert [json.loads(one.body)["record"]["message"] for one in first] == ["event 1", "event 2", "event 3"]
    assert reader.read_new() == []
    append(folder, *(event(n, 1000) for n in range(4, 9)))
    assert seqs(reader, limit=2) == [4, 5]
    assert seqs(reader, max_bytes=1) == [6]
    assert seqs(reader) == [7, 8]


def test_a_missing_record_raises_instead_of_being_skipped(make: Make) -> None:
    folder = make(spool=True)
    append(folder, event(1), event(2), event(3))
    (segment,) = folder.spool_folder.glob("*.log")
    first, _, third = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(first + third)
    with pytest.raises(RunDirError, match="from record 1 to 3"):
        SpoolReader(folder.spool_folder).read_new()


def test_segments_rotate_and_only_acknowledged_ones_are_dropped(run: RunDir) -> None:
    written(run, *range(1, 10))
    assert segments(run) == [1, 3, 5, 7, 9]
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader) == list(range(1, 10))
    for through, left in ((3, [3, 5, 7, 9]), (4, [5, 7, 9]), (9, [9])):
        reader.drop_through(through)
        assert segments(run) == left
    written(run, 10)
    assert seqs(reader) == [10]


def test_readable_files_hold_each_record_where_it_belongs(make: Make, tmp_path: Path) -> None:
    folder = make()
    append(folder, event(1))
    for step in (1, 2):
        append(folder, records.StepMetrics(step=step, metrics={"reward": step / 4}), group(step))
    append(folder, outcome("finished", 2))
    folder.close()
    root = tmp_path / "run"
    assert not (root / "spool").exists()
    metrics = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seq"], line["record"]["metrics"]["reward"]) for line in metrics] == [(2, 0.25), (4, 0.5)]
    assert sorted(path.name for path in (root / "samples").iterdir()) == ["step-000001.jsonl", "step-000002.jsonl"]
    assert json.loads((root / "outcome.json").read_text())["status"] == "finished"


def test_a_spool_over_its_cap_takes_all_but_groups_and_tells_the_gap(make: Make) -> None:
    folder = make(spool=True, spool_cap=3300)
    for step in range(1, 6):
        append(folder, records.StepMetrics(step=step, metrics={"reward": 0.5}), group(step))
    (segment,) = folder.spool_folder.glob("*.log")
    assert segment.stat().st_size > 3300
    append(folder, outcome("finished", 5))
    spooled = read(folder)
    # Groups of steps 1 and 2 fit under 3,300 bytes, that of step 3 crosses them.
    assert [row["kind"] for row in spooled] == [*("step", "group") * 3, *("step", "event") * 2, "outcome"]
    gaps = [row for row in spooled if row["kind"] == "event"]
    assert [gap["type"] for gap in gaps] == ["samples_dropped"] * 2
    assert [gap["data"] for gap in gaps] == [{"first_step": n, "last_step": n, "groups": 1} for n in (4, 5)]
    assert len(list((folder.path / "samples").iterdir())) == 5


def test_a_gap_is_told_in_the_commit_that_makes_it(make: Make) -> None:
    """So that a kill after it, without another group and without an outcome, leaves no gap untold."""
    folder = make(spool=True, spool_cap=0)
    append(folder, event(1), *(group(step) for step in (1, 1, 2)))
    (gap,) = [row for row in folder.events() if row.type == "samples_dropped"]
    assert gap.data == {"first_step": 1, "last_step": 2, "groups": 3}
    append(folder, group(3), outcome("stopped", 1))
    kinds = [one.get("type", one["kind"]) for one in read(folder)]
    assert kinds == ["test", "samples_dropped", "samples_dropped", "outcome"]


def test_groups_go_on_once_the_spool_was_emptied(make: Make) -> None:
    folder = make(spool=True, spool_cap=1500)
    for step in (1, 2, 3):
        append(folder, group(step))
    (segment,) = folder.spool_folder.glob("*.log")
    segment.write_bytes(b"")  # stands for a worker whose records the platform took
    append(folder, event(1))
    append(folder, group(4))
    kinds = [json.loads(line[18:])["record"]["kind"] for line in segment.read_bytes().splitlines()]
    assert kinds == ["event", "group"]
    (gap,) = [row for row in folder.events() if row.type == "samples_dropped"]
    assert gap.data == {"first_step": 3, "last_step": 3, "groups": 1}


def test_two_trainers_cannot_write_one_directory(tmp_path: Path) -> None:
    first = RunDir.create(tmp_path / "run")
    with pytest.raises(RunDirError, match="another trainer"):
        RunDir.create(tmp_path / "run")
    first.close()
    RunDir.create(tmp_path / "run").close()


@pytest.mark.parametrize("name", ["outcome.json", "manifest.json", "events.jsonl", "metrics.jsonl", "spool"])
def test_create_refuses_a_used_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path)
    with pytest.raises(RunDirError, match="cannot write"):
        RunDir.create(tmp_path / name / "run")


def test_a_reopened_folder_stays_as_it_is_until_it_is_gone_on_with(make: Make, tmp_path: Path) -> None:
    folder = make()
    append(folder, event(1))
    folder.close()

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}

    before = files()
    again = RunDir.reopen(tmp_path / "run")
    append(again, event(2), commit=False)
    again.write_config("name: b")
    append(again, outcome("failed", 2), commit=False)
    again.close()
    assert files() == before
    again = RunDir.reopen(tmp_path / "run")
    append(again, event(2), commit=False)
    again.write_config("name: b")
    again.continue_after(1)
    append(again, event(3))
    again.close()
    lines = [json.loads(line) for line in (again.path / "events.jsonl").read_text().splitlines()]
    assert [(line["seq"], line["record"]["message"]) for line in lines] == [(n, f"event {n}") for n in (1, 2, 3)]
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


def test_unreadable_events_at_the_end_are_left_out_and_others_named(make: Make) -> None:
    folder = make()
    append(folder, event(1), event(2))
    path = folder.path / "events.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + bytes(9) + b"\n" + second[:20])
    assert [record.message for record in folder.events()] == ["event 1", "event 2"]
    path.write_bytes(first + bytes(9) + b"\n" + second)
    with pytest.raises(RunDirError, match=r"events\.jsonl line 2"):
        list(folder.events())


@pytest.mark.parametrize("limit", [{"limit": 2}, {"max_bytes": 1000}])
def test_a_batch_that_ends_where_a_segment_does(run: RunDir, limit: dict[str, int]) -> None:
    written(run, 1, 2, 3, 4, 5)
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader, **limit) == [1, 2]
    reader.drop_through(2)
    assert segments(run) == [3, 5]
    assert seqs(reader) == [3, 4, 5]


def test_a_segment_that_gets_a_follower_while_its_last_batch_is_on_its_way(run: RunDir) -> None:
    written(run, 1, 2)
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader) == [1, 2]
    written(run, 3)
    reader.drop_through(2)
    assert segments(run) == [3]
    assert seqs(reader) == [3]


def test_a_batch_of_which_a_part_was_acknowledged(run: RunDir) -> None:
    """The rest is the shipper's to send again; the reader continues behind it."""
    written(run, 1, 2, 3, 4)
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader, limit=3) == [1, 2, 3]
    reader.drop_through(1)
    assert segments(run) == [1, 3]
    assert seqs(reader) == [4]
    reader.drop_through(4)
    assert segments(run) == [3]


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("record", [1, 2])
def test_a_length_that_grew_hides_nothing(run: RunDir, offset: int, record: int) -> None:
    """Neither the records after it nor, where it is the last one, itself; whether a trainer still writes or not."""
    written(run, 1, 2)
    (segment,) = run.spool_folder.glob("*.log")
    start = segment.read_bytes().index(b"\n") + 1 if record == 2 else 0
    content = bytearray(segment.read_bytes())
    content[start + offset] = ord("f")
    segment.write_bytes(content)
    with pytest.raises(RunDirError):
        SpoolReader(run.spool_folder).read_new()


def test_a_frame_torn_by_a_kill_is_no_damage(run: RunDir) -> None:
    """An attempt begins a spool of its own, so that nothing is ever written behind such a frame."""
    written(run, 1, 2, 3)
    newest = run.spool_folder / "0000000003.log"
    whole = newest.read_bytes()
    for length in range(len(whole)):
        newest.write_bytes(whole[:length])
        reader = SpoolReader(run.spool_folder)
        assert seqs(reader) == [1, 2]
        assert seqs(reader) == []
    newest.write_bytes(whole)
    assert seqs(reader) == [3]


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_segment_that_breaks_off_before_others(run: RunDir, cut: int) -> None:
    written(run, 1, 2, 3)
    first = run.spool_folder / "0000000001.log"
    first.write_bytes(first.read_bytes()[:-cut])
    with pytest.raises(RunDirError, match=r"0000000001\.log breaks off in record 2"):
        SpoolReader(run.spool_folder).read_new()


@pytest.mark.parametrize("gone", [1, 3])
def test_a_segment_that_is_gone(run: RunDir, gone: int) -> None:
    written(run, 1, 2, 3, 4, 5)
    (run.spool_folder / f"{gone:010d}.log").unlink()
    with pytest.raises(RunDirError, match=f"no segment that begins with record {gone}"):
        SpoolReader(run.spool_folder).read_new()


def test_the_largest_record_that_the_platform_takes() -> None:
    largest = json.dumps({"seq": 1, "text": "x" * (MAX_BODY_BYTES - 22)}).encode()
    assert len(largest) == MAX_BODY_BYTES == 16 * 2**20
    assert unframe(frame(largest), 0) == (largest, len(largest) + 19)
    with pytest.raises(RunDirError, match="too large to be shipped"):
        unframe(frame(largest + b" "), 0)
