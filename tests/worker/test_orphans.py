"""What a worker's earlier life left is ended by its own record, and by nothing else; the platform hears of it. A runs
folder may be shared by several workers, or a part of it not be looked at: no dead attempt is forgotten.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.nodes.services import node_create
from cohort.runs.models import Attempt, Run, RunState
from tests.factories.worker import NODE
from tests.needs import needs
from tests.processes import wait_for
from tests.worker.conftest import Site
from tests.worker.life import OURS, claimed, lives
from worker.platform_client.client import Platform, Unreachable
from worker.processes import orphans, reaper
from worker.processes.child import GroupSurvives
from worker.processes.orphans import (
    LOCK,
    MARK,
    RECORD,
    HeldRecord,
    ProcessRecord,
    settle,
    still_leaving,
    survivors,
    sweep,
)
from worker.processes.reaper import Process, process


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def hold(runs: Path) -> Callable[..., HeldRecord]:
    """The record of an attempt whose trainer was not started, in its folder, held by this process."""

    def make(run_id: int = 1, node: str = OURS) -> HeldRecord:
        folder = runs / f"run-{run_id}" / "attempt-1"
        folder.mkdir(parents=True)
        return HeldRecord(folder, claimed(run_id=run_id), node)

    return make


@pytest.fixture
def held(hold: Callable[..., HeldRecord]) -> HeldRecord:
    return hold()


def folder_of(runs: Path, run_id: int = 1) -> Path:
    return runs / f"run-{run_id}" / "attempt-1"


def write(folder: Path, record: ProcessRecord, **changes: Any) -> None:
    (folder / RECORD).write_text(record.model_copy(update=changes).model_dump_json())


@pytest.mark.parametrize("by", ["mark", "group"])
def test_what_outlived_everyone_is_found_by_the_record(life: Any, runs: Path, by: str) -> None:
    if by == "group":
        needs("cgroup")
    family = life(*(["group"] if by == "group" else []))
    family.kill()
    assert family.left()
    if by == "group":
        write(family.folder, family.record, mark="0" * 32)  # as of a program that has cleared its environment
    assert list(sweep(runs)) == [family.folder]
    assert family.left() == []
    assert family.record.cgroup is None or not Path(family.record.cgroup).exists()


def test_one_that_is_ending_is_waited_for(life: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a killed process's environment, and the mark with it, before it has freed all that it held."""
    family = life()
    family.kill()
    dying: list[Process] = []
    marked, living = orphans._marked, orphans._living

    def slowly(record: ProcessRecord, group: Any) -> Any:
        """They die only once they were found again, without their mark."""
        rows = living(record, group)
        for row in rows if dying else []:
            reaper.kill(row)
        return rows

    monkeypatch.setattr(orphans, "_marked", lambda pid, mark: not dying and marked(pid, mark))
    monkeypatch.setattr(orphans, "_living", slowly)
    monkeypatch.setattr(orphans, "reaper", SimpleNamespace(kill=dying.append))
    (record,) = sweep(runs).values()
    assert family.left() == []
    assert not record.survives


def test_one_that_never_ends_is_known_without_its_mark(life: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = life()
    family.kill()
    monkeypatch.setattr(orphans, "_KILL_SECONDS", 0.5)
    monkeypatch.setattr(orphans, "reaper", SimpleNamespace(kill=lambda row: None))
    sweep(runs)
    kept = ProcessRecord.model_validate_json((family.folder / RECORD).read_bytes())
    assert kept.survives
    assert sorted(pid for pid, _ in kept.left) == sorted(family.left())
    monkeypatch.setattr(orphans, "_marked", lambda pid, mark: False)
    monkeypatch.setattr(orphans, "_KILL_AGAIN_SECONDS", 60.0)
    monkeypatch.setattr(orphans, "reaper", reaper)
    sweep(runs)
    assert family.left() == []


def test_a_live_supervisor_is_left_alone_and_waited_for(life: Any, runs: Path) -> None:
    family = life()
    assert sweep(runs) == {}
    assert lives(family.trainer)
    assert family.left()
    assert still_leaving(runs, OURS) == []
    family.kill("worker")
    assert still_leaving(runs, OURS) == [1], "it outlives its worker"
    assert still_leaving(runs, "theirs") == [], "another node's is not waited for"
    assert sweep(runs) == {}
    family.kill("supervisor")
    assert still_leaving(runs, OURS) == []


def test_another_worker_s_runs_folder_is_not_looked_into(life: Any, tmp_path: Path) -> None:
    theirs = life(runs="theirs")
    theirs.kill()
    mine = life(claim=claimed(run_id=2), runs="mine")
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
    held: HeldRecord, bystander: Process, runs: Path, changes: dict[str, str], swept: bool
) -> None:
    ids = {"pid": bystander.pid, "session": bystander.pid, "start_ticks": bystander.ticks}
    write(folder_of(runs), held.record, **ids, **changes)
    held.release()
    (folder_of(runs) / LOCK).unlink()
    assert bool(sweep(runs)) == swept
    assert (folder_of(runs) / LOCK).exists() == swept, "another machine's may be one that this user must not open"
    assert lives(bystander.pid)


def test_an_id_that_is_somebody_else_s_by_now_is_left_alone(held: HeldRecord, bystander: Process, runs: Path) -> None:
    """The record's process id belongs to a process that began at another time, with a session of its own."""
    ids, folder = {"pid": bystander.pid, "session": bystander.pid}, folder_of(runs)
    write(folder, held.record, **ids, start_ticks=bystander.ticks - 1)
    held.release()
    assert list(sweep(runs)) == [folder]
    assert lives(bystander.pid)
    write(folder, held.record, **ids, start_ticks=bystander.ticks)  # with its own time it is the one
    sweep(runs)
    assert not lives(bystander.pid)


def test_the_first_process_is_never_touched(held: HeldRecord) -> None:
    first = process(1)
    assert first is not None
    record = held.record.model_copy(update={"pid": 1, "session": first.session, "start_ticks": first.ticks})
    held.release()
    assert 1 not in [row.pid for row in orphans._living(record, None)]


def test_an_attempt_that_ended_leaves_no_record(held: HeldRecord, runs: Path) -> None:
    assert json.loads((folder_of(runs) / RECORD).read_text())["boot_id"] == held.record.boot_id
    assert sweep(runs) == {}  # held by this very process
    held.ended()
    assert sorted(path.name for path in folder_of(runs).iterdir()) == [LOCK]


def test_the_mark_is_no_part_of_a_word() -> None:
    with subprocess.Popen(["sleep", "600"], env={MARK: "ab" * 17, "NOT_" + MARK: "ab" * 16}) as longer:
        try:
            wait_for(lambda: b"ab" * 17 in Path(f"/proc/{longer.pid}/environ").read_bytes(), "it has started")
            assert not orphans._marked(longer.pid, "ab" * 16)
            assert orphans._marked(longer.pid, "ab" * 17)
        finally:
            longer.kill()


def test_the_platform_hears_of_it_from_its_node_and_the_run_goes_back_at_once(
    life: Any, site: Site, runs: Path
) -> None:
    """Another node on the same folder kills what is left, and leaves it to the dead one's own to tell."""
    run = site.launch()
    with Platform(site.url, site.node_token) as theirs, Platform(site.url, node_create(name="gpu-2")[1]) as mine:
        assert theirs.node != mine.node
        family = life(claim=theirs.claim(run.pk, NODE), node=theirs.node)
        settle(runs, theirs)
        assert Run.objects.get().state == RunState.STARTING
        family.kill()
        settle(runs, mine)
        assert family.left() == []
        with Platform("http://127.0.0.1:9", site.node_token) as nobody, pytest.raises(Unreachable):
            settle(runs, nobody)
        assert (family.folder / RECORD).exists()
        assert Run.objects.get().state == RunState.STARTING
        settle(runs, theirs)  # one that did not hear it hears it later
        run.refresh_from_db()
        assert (run.state, run.error_code) == (RunState.QUEUED, "worker_lost")
        assert Attempt.objects.get().state == "lost"
        assert not (family.folder / RECORD).exists()
        settle(runs, theirs)
        assert Run.objects.get().state == RunState.QUEUED


def test_another_node_s_survivor_keeps_no_run_away(
    bystander: Process, hold: Callable[..., HeldRecord], runs: Path
) -> None:
    hold(node="theirs").survived(GroupSurvives("hangs", left=[bystander]))
    assert f"process {bystander.pid} (state" in survivors(runs, "theirs")
    assert survivors(runs, OURS) == ""


def test_what_could_not_be_killed_is_known_by_id_and_start(
    bystander: Process, held: HeldRecord, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's process, whose environment cannot be read and which is in no session of the trainer's."""
    monkeypatch.setattr("worker.processes.orphans._KILL_AGAIN_SECONDS", 60.0)
    folder = folder_of(runs)
    held.survived(GroupSurvives("not allowed", left=[bystander]))
    record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
    assert record.left == ((bystander.pid, bystander.ticks),)
    write(folder, record, left=((bystander.pid, bystander.ticks - 1),))
    assert survivors(runs, OURS) == "", "another process that has its id"
    write(folder, record)
    assert [record.survives for record in sweep(runs).values()] == [False]
    assert not lives(bystander.pid)


@pytest.mark.parametrize("broken", ["torn", LOCK, RECORD, "run-1/attempt-1", "run-1"])
def test_one_folder_that_cannot_be_looked_at_hides_no_other(
    held: HeldRecord, hold: Callable[..., HeldRecord], runs: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    bad = folder_of(runs)
    held.release()
    hold(2).release()
    if broken == "torn":
        (bad / RECORD).write_text('{"run_id": ')
    elif broken in (LOCK, RECORD):
        (bad / broken).unlink()
        (bad / broken).mkdir()
    else:
        bad = runs / broken
        shutil.rmtree(bad)
        bad.symlink_to(bad)
    assert list(sweep(runs)) == [folder_of(runs, 2)]
    assert still_leaving(runs, OURS) == []
    assert survivors(runs, OURS) == ""
    assert str(bad) in caplog.text


def test_a_folder_that_goes_meanwhile_is_passed_over(
    hold: Callable[..., HeldRecord], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its record and the look at its lock."""
    gone = folder_of(runs)
    hold(1).release()
    hold(2).release()
    real = os.open

    def remove_first(path: Any, *rest: Any, **named: Any) -> int:
        if path == gone / LOCK:
            shutil.rmtree(gone)
        return real(path, *rest, **named)

    monkeypatch.setattr("worker.processes.orphans.os.open", remove_first)
    assert list(sweep(runs)) == [folder_of(runs, 2)]


def test_a_runs_folder_that_cannot_be_listed_is_no_empty_one(runs: Path) -> None:
    assert sweep(runs / "not there yet") == {}
    runs.symlink_to(runs)
    with pytest.raises(OSError, match="symbolic links"):
        sweep(runs)
