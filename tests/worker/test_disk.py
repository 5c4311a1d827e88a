"""A disk that runs full: a run pauses in words, a trainer is stopped in time, a worker takes no run."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.models import Attempt, Run, RunState
from tests.disks import small_disk
from tests.processes import session_members
from tests.worker.conftest import Making, Site
from tests.worker.stand_in import child
from worker.disk import free_bytes, least_free, size_in_words
from worker.node import refusal

MB = 1_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """32 MB that nothing else uses."""
    with small_disk(tmp_path / "disk", 32 * MB) as place:
        yield place


def test_room_is_measured_where_the_folder_will_be(disk: Path) -> None:
    assert 31 * MB < free_bytes(disk / "runs" / "not" / "there" / "yet") <= 33 * MB
    (disk / "ballast").write_bytes(bytes(20 * MB))
    assert 11 * MB < free_bytes(disk) < 13 * MB


def test_the_least_room_is_a_share_of_a_small_disk(disk: Path, tmp_path: Path) -> None:
    assert least_free(disk / "runs", None) == pytest.approx(32 * MB / 20, rel=0.01)
    assert least_free(disk / "runs", 7) == 7
    assert least_free(tmp_path, None) <= 2 * 1024**3


def test_sizes_in_words() -> None:
    assert [size_in_words(count) for count in (999, 1500, 2_340_000, 5 * 10**9)] == [
        "999 bytes",
        "1.5 kB",
        "2.3 MB",
        "5.0 GB",
    ]


def test_a_worker_without_room_takes_no_run(disk: Path) -> None:
    assert refusal(disk / "runs", 20 * MB, "") == ""
    (disk / "ballast").write_bytes(bytes(20 * MB))
    refused = refusal(disk / "runs", 20 * MB, "")
    assert str(disk) in refused
    assert "20.0 MB must be free" in refused


def test_a_trainer_is_stopped_before_the_disk_is_full(
    disk: Path, site: Site, supervisor: Making, background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_BALLAST", str(20 * MB))
    run = site.launch()
    made = replace(supervisor(child("fill-disk"), disk=0.05), runs=disk / "runs", min_free_bytes=16 * MB)
    finish = background(lambda: made.run(run.pk)).result(timeout=120)
    assert (finish.end, finish.code) == ("paused", "disk_full")
    assert str(disk) in finish.message
    assert "MB are left" in finish.message
    assert session_members(int((disk / "runs" / f"run-{run.pk}" / "attempt-1" / "pid").read_text())) == []
    run.refresh_from_db()
    assert run.state == RunState.PAUSED
    assert "nearly full" in run.reason
    attempt = Attempt.objects.get()
    assert attempt.free_bytes is not None
    assert attempt.free_bytes < 33 * MB


def test_a_disk_that_is_full_before_anything_could_be_written(
    disk: Path, site: Site, supervisor: Making, background: Any
) -> None:
    (disk / "runs").mkdir()
    subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=1M"], check=False, capture_output=True)
    assert free_bytes(disk) == 0
    run = site.launch()
    made = replace(supervisor(child("finish")), runs=disk / "runs")
    finish = background(lambda: made.run(run.pk)).result(timeout=120)
    assert (finish.end, finish.code) == ("paused", "disk_full")
    run.refresh_from_db()
    assert run.state == RunState.PAUSED
    assert Run.objects.get().fence == 1
