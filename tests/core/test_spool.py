"""What a reader of the spool makes of segments that come and go under it, and of damage: nothing is lost unsaid."""

import json
from pathlib import Path

import pytest

from grpo_core import records, run_dir
from grpo_core.errors import RunDirError
from grpo_core.run_dir import RunDir
from grpo_core.spool import MAX_BODY_BYTES, SpoolReader, frame, unframe


def event(number: int) -> records.Event:
    return records.Event(type="test", message=f"event {number}", data={"filler": "x" * 600})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Each record is over 600 bytes, so that a segment ends with its second one."""
    monkeypatch.setattr(run_dir, "SEGMENT_BYTES", 1000)
    return RunDir.create(tmp_path / "run", spool=True)


def write(run: RunDir, *numbers: int) -> None:
    for number in numbers:
        run.append(event(number))
    run.commit()


def seqs(reader: SpoolReader, limit: int = 2000) -> list[int]:
    return [one.seq for one in reader.read_new(limit=limit)]


def segments(run: RunDir) -> list[str]:
    return sorted(path.stem.lstrip("0") for path in run.spool_folder.glob("*.log"))


@pytest.mark.parametrize("by", ["limit", "max_bytes"])
def test_a_batch_that_ends_where_a_segment_does(run: RunDir, by: str) -> None:
    write(run, 1, 2, 3, 4, 5)
    reader = SpoolReader(run.spool_folder)
    first = reader.read_new(limit=2) if by == "limit" else reader.read_new(max_bytes=1000)
    assert [one.seq for one in first] == [1, 2]
    reader.drop_through(2)
    assert segments(run) == ["3", "5"]
    assert seqs(reader) == [3, 4, 5]


def test_a_segment_that_gets_a_follower_while_its_last_batch_is_on_its_way(run: RunDir) -> None:
    write(run, 1, 2)
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader) == [1, 2]
    write(run, 3)
    reader.drop_through(2)
    assert segments(run) == ["3"]
    assert seqs(reader) == [3]


def test_a_batch_of_which_a_part_was_acknowledged(run: RunDir) -> None:
    """The rest is the shipper's to send again; the reader goes on behind it."""
    write(run, 1, 2, 3, 4)
    reader = SpoolReader(run.spool_folder)
    assert seqs(reader, 3) == [1, 2, 3]
    reader.drop_through(1)
    assert segments(run) == ["1", "3"]
    assert seqs(reader) == [4]
    reader.drop_through(4)
    assert segments(run) == ["3"]


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("record", [1, 2])
def test_a_length_that_grew_hides_nothing(run: RunDir, place: int, record: int) -> None:
    """Neither the records after it nor, where it is the last one, itself; whether a trainer still writes or not."""
    write(run, 1, 2)
    (segment,) = run.spool_folder.glob("*.log")
    start = segment.read_bytes().index(b"\n") + 1 if record == 2 else 0
    content = bytearray(segment.read_bytes())
    content[start + place] = ord("f")
    segment.write_bytes(content)
    with pytest.raises(RunDirError):
        SpoolReader(run.spool_folder).read_new()


def test_a_frame_torn_by_a_kill_is_no_damage(run: RunDir) -> None:
    """An attempt begins a spool of its own, so that nothing is ever written behind such a frame."""
    write(run, 1, 2, 3)
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
    write(run, 1, 2, 3)
    first = run.spool_folder / "0000000001.log"
    first.write_bytes(first.read_bytes()[:-cut])
    with pytest.raises(RunDirError, match=r"0000000001\.log breaks off in record 2"):
        SpoolReader(run.spool_folder).read_new()


@pytest.mark.parametrize("gone", [1, 3])
def test_a_segment_that_is_gone(run: RunDir, gone: int) -> None:
    write(run, 1, 2, 3, 4, 5)
    (run.spool_folder / f"{gone:010d}.log").unlink()
    with pytest.raises(RunDirError, match=f"no segment that begins with record {gone}"):
        SpoolReader(run.spool_folder).read_new()


def test_the_largest_record_that_the_platform_takes() -> None:
    largest = json.dumps({"seq": 1, "text": "x" * (MAX_BODY_BYTES - 22)}).encode()
    assert len(largest) == MAX_BODY_BYTES == 16 * 2**20
    assert unframe(frame(largest), 0) == (largest, len(largest) + 19)
    with pytest.raises(RunDirError, match="too large to be shipped"):
        unframe(frame(largest + b" "), 0)
