"""What a worker tells of its runs folder, and why it takes no run: an idle one is heard of whatever goes wrong."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from cohort.background.revoke import node_revoke
from cohort.nodes.models import Node
from cohort.runs.models import Attempt, Run, RunState
from tests.disks import small_disk
from tests.factories.worker import NODE
from tests.processes import DEADLINE, session_members, wait_for
from tests.worker.conftest import Attempting, Site
from tests.worker.life import claimed
from worker import devices
from worker.environment import Environment
from worker.node import facts, heartbeat
from worker.node.facts import RUNS_ID, at_present, free_bytes, least_free, refusal, runs_id
from worker.processes.child import GroupSurvives
from worker.processes.orphans import HeldRecord

_ASK = """
import sys; from pathlib import Path
sys.stdin.readline()
from worker.node.facts import runs_id
print(runs_id(Path(sys.argv[1])))
"""


def test_a_runs_folder_keeps_the_id_it_was_given(tmp_path: Path) -> None:
    first = runs_id(tmp_path / "not" / "there" / "yet")
    assert len(first) == 32
    assert runs_id(tmp_path / "not" / "there" / "yet") == first
    assert runs_id(tmp_path / "other") not in ("", first)
    (tmp_path / "by another path").symlink_to(tmp_path / "not" / "there" / "yet")
    assert at_present(NODE, tmp_path / "by another path", 0, "").runs_id == first


def test_workers_that_begin_together_agree(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _ASK, str(tmp_path / "runs")]
    workers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:  # all are at the line by now, or will find what the first made
        print("go", file=worker.stdin, flush=True)
    assert {worker.communicate()[0].strip() for worker in workers} == {(tmp_path / "runs" / RUNS_ID).read_text()}


@pytest.mark.parametrize("torn", ["", "0123456789abcdef", "x" * 32, "0" * 33])
def test_an_id_that_was_not_written_whole_is_made_anew(tmp_path: Path, torn: str) -> None:
    (tmp_path / RUNS_ID).write_text(torn)
    made = runs_id(tmp_path)
    assert len(made) == 32
    assert (tmp_path / RUNS_ID).read_text() == made


def test_an_id_that_another_wrote_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between this worker's first look and its lock."""
    real, looks = facts._read_id, []

    def look(runs: Path) -> str:
        looks.append(1)
        if len(looks) == 1:
            (runs / RUNS_ID).write_text("ab" * 16)
            return ""
        return real(runs)

    monkeypatch.setattr(facts, "_read_id", look)
    assert runs_id(tmp_path) == "ab" * 16


def test_a_folder_that_cannot_be_written_has_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "runs").write_text("a file")
    assert runs_id(tmp_path / "runs") == ""
    assert str(tmp_path / "runs") in caplog.text


def test_a_worker_without_room_tells_so(tmp_path: Path) -> None:
    assert at_present(NODE, tmp_path, 0, "").refuses == ""
    assert "COHORT_MIN_FREE_BYTES" in at_present(NODE, tmp_path, 1 << 60, "").refuses


def test_a_gpu_that_counts_ended_processes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "run-4" / "attempt-2").mkdir(parents=True)
    HeldRecord(tmp_path / "run-4" / "attempt-2", claimed(run_id=4, fence=2), "ours").survived(
        GroupSurvives("held", holders=(ended.pid,))
    )
    monkeypatch.setattr(devices, "gpu_users", lambda: {ended.pid, 1})
    assert f"process {ended.pid}, which has ended but" in refusal(tmp_path, 0, "ours")
    monkeypatch.setattr(devices, "gpu_users", lambda: None)
    assert "nvidia-smi does not answer" in refusal(tmp_path, 0, "ours")
    monkeypatch.setattr(devices, "gpu_users", lambda: {1})
    assert refusal(tmp_path, 0, "ours") == ""


def refuses() -> str | None:
    info = Node.objects.get().info
    return info["refuses"] if info else None


def test_a_runs_folder_that_breaks_and_heals(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node is here all the time and says why it takes no run; and a token that is revoked is noticed after it."""
    monkeypatch.setattr(heartbeat, "SECONDS", 0.05)
    runs = tmp_path / "runs"
    runs.symlink_to(runs)
    stop, refused = threading.Event(), threading.Event()
    settings = Environment(url=site.url, node_token=SecretStr(site.node_token), runs_dir=runs, min_free_bytes=0)
    thread = heartbeat.start_heartbeat(settings, stop, refused.set)
    try:
        wait_for(lambda: "cannot be looked at" in (refuses() or ""), "it tells why it takes no run")
        wait_for(lambda: "failed and is tried again" in caplog.text, "it has looked for the dead")
        seen = Node.objects.get().last_seen_at
        wait_for(lambda: Node.objects.get().last_seen_at != seen, "it is heard of again")
        assert caplog.text.count("failed and is tried again") == 1
        runs.unlink()
        wait_for(lambda: refuses() == "", "it takes runs")
        assert not refused.is_set()
        node_revoke(node=Node.objects.get(), actor=None)
        assert refused.wait(DEADLINE)
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------------- a disk that runs full

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


def test_a_trainer_is_stopped_before_the_disk_is_full(
    disk: Path, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_BALLAST", str(20 * MB))
    begun = attempt("fill-disk", runs_dir=disk / "runs", min_free_bytes=16 * MB, limits={"disk": 0.05})
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
    begun = attempt("finish", runs_dir=disk / "runs")
    assert begun.end() == ("paused", "disk_full")
    assert begun.run.state == RunState.PAUSED
    assert Run.objects.get().fence == 1
