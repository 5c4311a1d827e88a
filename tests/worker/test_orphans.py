"""What a worker's earlier life left is ended by its own record, and by nothing else; the platform hears of it."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.runs.models import Attempt, Run, RunState
from tests.factories.worker import NODE
from tests.needs import needs
from tests.processes import wait_for
from tests.worker.conftest import Site
from tests.worker.life import OURS, claimed, lives
from worker import keeper, orphans
from worker.client import Platform, Unreachable
from worker.keeper import Process, process
from worker.orphans import LOCK, MARK, RECORD, Held, ProcessRecord, settle, still_leaving, sweep


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """The record of an attempt whose trainer was not started."""
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    folder.mkdir(parents=True)
    return Held(folder, claimed(), OURS)


def write(folder: Path, record: ProcessRecord, **changes: Any) -> None:
    (folder / RECORD).write_text(record.model_copy(update=changes).model_dump_json())


@pytest.mark.parametrize("by", ["mark", "group"])
def test_what_outlived_everyone_is_found_by_the_record(life: Any, tmp_path: Path, by: str) -> None:
    if by == "group":
        needs("cgroup")
    one = life(None, *(["group"] if by == "group" else []))
    one.kill()
    assert one.left()
    if by == "group":
        write(one.folder, one.record, mark="0" * 32)  # as of a program that has cleared its environment
    assert list(sweep(tmp_path / "runs")) == [one.folder]
    assert one.left() == []
    assert one.record.cgroup is None or not Path(one.record.cgroup).exists()


def test_one_that_is_ending_is_waited_for(life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a killed process's environment, and the mark with it, before it has freed all that it held."""
    one = life()
    one.kill()
    dying: list[Process] = []
    marked, living = orphans._marked, orphans._living

    def slowly(record: ProcessRecord, group: Any) -> Any:
        """They die only once they were found again, without their mark."""
        found = living(record, group)
        for one in found if dying else []:
            keeper.kill(one)
        return found

    monkeypatch.setattr(orphans, "_marked", lambda pid, mark: not dying and marked(pid, mark))
    monkeypatch.setattr(orphans, "_living", slowly)
    monkeypatch.setattr(orphans, "keeper", SimpleNamespace(kill=dying.append))
    (left,) = sweep(tmp_path / "runs").values()
    assert one.left() == []
    assert not left.survives


def test_one_that_never_ends_is_known_without_its_mark(
    life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = life()
    one.kill()
    monkeypatch.setattr(orphans, "_KILL_SECONDS", 0.5)
    monkeypatch.setattr(orphans, "keeper", SimpleNamespace(kill=lambda found: None))
    sweep(tmp_path / "runs")
    kept = ProcessRecord.model_validate_json((one.folder / RECORD).read_bytes())
    assert kept.survives
    assert sorted(pid for pid, _ in kept.left) == sorted(one.left())
    monkeypatch.setattr(orphans, "_marked", lambda pid, mark: False)
    monkeypatch.setattr(orphans, "_KILL_AGAIN_SECONDS", 60.0)
    monkeypatch.setattr(orphans, "keeper", keeper)
    sweep(tmp_path / "runs")
    assert one.left() == []


def test_a_live_supervisor_is_left_alone_and_waited_for(life: Any, tmp_path: Path) -> None:
    one, runs = life(), tmp_path / "runs"
    assert sweep(runs) == {}
    assert lives(one.trainer)
    assert one.left()
    assert still_leaving(runs, OURS) == []
    one.kill("worker")
    assert still_leaving(runs, OURS) == [1], "it outlives its worker"
    assert still_leaving(runs, "theirs") == [], "another node's is not waited for"
    assert sweep(runs) == {}
    one.kill("supervisor")
    assert still_leaving(runs, OURS) == []


def test_another_worker_s_runs_folder_is_not_looked_into(life: Any, tmp_path: Path) -> None:
    theirs = life(runs="theirs")
    theirs.kill()
    mine = life(claimed(run_id=2), runs="mine")
    mine.kill()
    assert list(sweep(tmp_path / "mine")) == [mine.folder]
    assert theirs.left()
    assert mine.left() == []


@pytest.mark.parametrize(
    ("changes", "swept"),
    [
        ({"host": "another-host"}, False),  # a folder that two machines share
        ({"boot_id": "another boot"}, True),  # the machine was started anew: nothing of it can live
        ({"pid_namespace": "pid:[1]"}, True),  # a container was: nothing of it can be seen
    ],
)
def test_ids_of_another_place_or_time_are_never_used(
    held: Held, bystander: Process, tmp_path: Path, changes: dict[str, str], swept: bool
) -> None:
    ids = {"pid": bystander.pid, "session": bystander.pid, "start_ticks": bystander.ticks}
    write(tmp_path / "runs" / "run-1" / "attempt-1", held.record, **ids, **changes)
    held.release()
    assert bool(sweep(tmp_path / "runs")) == swept
    assert lives(bystander.pid)


def test_an_id_that_is_somebody_else_s_by_now_is_left_alone(held: Held, bystander: Process, tmp_path: Path) -> None:
    """The record's process id belongs to a process that began at another time, with a session of its own."""
    ids = {"pid": bystander.pid, "session": bystander.pid}
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    write(folder, held.record, **ids, start_ticks=bystander.ticks - 1)
    held.release()
    assert list(sweep(tmp_path / "runs")) == [folder]
    assert lives(bystander.pid)
    write(folder, held.record, **ids, start_ticks=bystander.ticks)  # with its own time it is the one
    sweep(tmp_path / "runs")
    assert not lives(bystander.pid)


def test_the_first_process_is_never_touched(held: Held) -> None:
    first = process(1)
    assert first is not None
    record = held.record.model_copy(update={"pid": 1, "session": first.session, "start_ticks": first.ticks})
    held.release()
    assert 1 not in [one.pid for one in orphans._living(record, None)]


def test_a_record_that_cannot_be_read_is_named_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / RECORD).write_text('{"run_id": ')
    assert sweep(tmp_path / "runs") == {}
    assert str(folder) in caplog.text


def test_an_attempt_that_ended_leaves_no_record(held: Held, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    assert json.loads((folder / RECORD).read_text())["boot_id"] == held.record.boot_id
    assert sweep(tmp_path / "runs") == {}  # held by this very process
    held.ended()
    assert sorted(path.name for path in folder.iterdir()) == [LOCK]


def test_the_mark_is_no_part_of_a_word() -> None:
    with subprocess.Popen(["sleep", "600"], env={MARK: "ab" * 17, "NOT_" + MARK: "ab" * 16}) as longer:
        try:
            wait_for(lambda: b"ab" * 17 in Path(f"/proc/{longer.pid}/environ").read_bytes(), "it has started")
            assert not orphans._marked(longer.pid, "ab" * 16)
            assert orphans._marked(longer.pid, "ab" * 17)
        finally:
            longer.kill()


def test_the_platform_hears_of_it_and_the_run_goes_back_at_once(life: Any, site: Site, tmp_path: Path) -> None:
    run, runs = site.launch(), tmp_path / "runs"
    with Platform(site.url, site.node_token) as platform:
        one = life(platform.claim(run.pk, NODE), node=platform.node)
        settle(runs, platform)
        assert Run.objects.get().state == RunState.STARTING
        one.kill()
        with Platform("http://127.0.0.1:9", site.node_token) as nobody, pytest.raises(Unreachable):
            settle(runs, nobody)
        assert one.left() == []
        settle(runs, platform)  # one that did not hear it hears it later
        run.refresh_from_db()
        assert (run.state, run.error_code) == (RunState.QUEUED, "worker_lost")
        assert Attempt.objects.get().state == "lost"
        assert not (one.folder / RECORD).exists()
        settle(runs, platform)
        assert Run.objects.get().state == RunState.QUEUED
