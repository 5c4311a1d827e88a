"""A disk that runs full: a run pauses, a trainer is stopped in time, a worker takes no run."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.runs.models import Attempt, Run, RunState
from tests.disks import small_disk
from tests.processes import session_members
from tests.worker.conftest import Attempting
from worker.disk import free_bytes, least_free, size_in_words
from worker.node import refusal

MB = 1_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """32 MB that nothing else uses."""
    with small_disk(tmp_path / "disk", 32 * MB) as folder:
        yield folder


def test_room_is_measured_where_the_folder_will_be(disk: Path, tmp_path: Path) -> None:
    assert least_free(disk / "runs", None) == pytest.approx(32 * MB / 20, rel=0.01)
    assert least_free(disk / "runs", 7) == 7
    assert least_free(tmp_path, None) <= 2 * 1024**3
    assert 31 * MB < free_bytes(disk / "runs" / "not" / "there" / "yet") <= 33 * MB
    assert refusal(disk / "runs", 20 * MB, "") == ""
    (disk / "ballast").write_bytes(bytes(20 * MB))
    assert 11 * MB < free_bytes(disk) < 13 * MB
    assert str(disk) in refusal(disk / "runs", 20 * MB, "")
    assert [size_in_words(size) for size in (999, 1500, 5 * 10**9)] == ["999 bytes", "1.5 kB", "5.0 GB"]


def test_a_trainer_is_stopped_before_the_disk_is_full(
    disk: Path, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_BALLAST", str(20 * MB))
    begun = attempt("fill-disk", runs=disk / "runs", min_free_bytes=16 * MB, limits={"disk": 0.05})
    assert begun.end() == ("paused", "disk_full")
    assert session_members(begun.pid) == []
    assert begun.run.state == RunState.PAUSED
    assert str(disk) in begun.run.reason
    free = Attempt.objects.get().free_bytes
    assert free is not None
    assert free < 33 * MB


def test_a_disk_that_is_full_before_anything_could_be_written(disk: Path, attempt: Attempting) -> None:
    (disk / "runs").mkdir()
    subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=1M"], check=False, capture_output=True)
    assert free_bytes(disk) == 0
    begun = attempt("finish", runs=disk / "runs")
    assert begun.end() == ("paused", "disk_full")
    assert begun.run.state == RunState.PAUSED
    assert Run.objects.get().fence == 1
