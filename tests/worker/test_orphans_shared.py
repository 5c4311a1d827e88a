"""A runs folder that several workers share, or of which a part cannot be looked at: no dead attempt is forgotten."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.models import Run, RunState
from cohort.runs.nodes import node_create
from tests.factories.worker import NODE
from tests.worker.conftest import Site
from tests.worker.life import OURS, claimed, lives
from worker.client import Platform
from worker.keeper import Process
from worker.orphans import LOCK, RECORD, Held, ProcessRecord, settle, still_leaving, survivors, sweep
from worker.process import GroupSurvives


def attempt(runs: Path, run_id: int) -> Path:
    folder = runs / f"run-{run_id}" / "attempt-1"
    folder.mkdir(parents=True)
    return folder


def test_another_node_s_dead_are_killed_and_left_to_it_to_tell(life: Any, site: Site, tmp_path: Path) -> None:
    run, runs = site.launch(), tmp_path / "runs"
    with Platform(site.url, site.node_token) as theirs, Platform(site.url, node_create(name="gpu-2")[1]) as mine:
        assert theirs.node != mine.node
        one = life(theirs.claim(run.pk, NODE), node=theirs.node)
        one.kill()
        settle(runs, mine)
        assert one.left() == []
        assert (one.folder / RECORD).exists()
        assert Run.objects.get().state == RunState.STARTING
        settle(runs, theirs)
    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.QUEUED, "worker_lost")
    assert not (one.folder / RECORD).exists()


def test_another_node_s_survivor_keeps_no_run_away(bystander: Process, tmp_path: Path) -> None:
    Held(attempt(tmp_path, 1), claimed(), "theirs").survived(GroupSurvives("hangs", left=[bystander]))
    assert f"process {bystander.pid} (state" in survivors(tmp_path, "theirs")
    assert survivors(tmp_path, OURS) == ""


def test_a_record_of_an_older_worker_is_everybody_s_own(tmp_path: Path) -> None:
    folder = attempt(tmp_path, 1)
    held = Held(folder, claimed(), OURS)
    (folder / RECORD).write_text(held.record.model_dump_json(exclude={"node", "left"}))
    held.release()
    assert all(record.is_of("anybody") for record in sweep(tmp_path).values())
    assert list(sweep(tmp_path)) == [folder]


def test_what_could_not_be_killed_is_known_by_id_and_start(
    bystander: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's process, whose environment cannot be read and which is in no session of the trainer's."""
    monkeypatch.setattr("worker.orphans._KILL_AGAIN_SECONDS", 60.0)
    folder = attempt(tmp_path, 1)
    Held(folder, claimed(), OURS).survived(GroupSurvives("not allowed", left=[bystander]))
    record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
    assert record.left == ((bystander.pid, bystander.ticks),)
    later = record.model_copy(update={"left": ((bystander.pid, bystander.ticks - 1),)})
    (folder / RECORD).write_text(later.model_dump_json())
    assert survivors(tmp_path, OURS) == "", "another process that has its id"
    (folder / RECORD).write_text(record.model_dump_json())
    assert [one.survives for one in sweep(tmp_path).values()] == [False]
    assert not lives(bystander.pid)


@pytest.mark.parametrize("broken", [LOCK, RECORD, "run-1/attempt-1", "run-1"])
def test_one_folder_that_cannot_be_looked_at_hides_no_other(
    life: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    runs = tmp_path / "runs"
    bad = attempt(runs, 1)
    if broken in (LOCK, RECORD):
        Held(bad, claimed(), OURS).release()
        (bad / broken).unlink()
        (bad / broken).mkdir()
    else:
        bad = runs / broken
        shutil.rmtree(bad)
        bad.symlink_to(bad)
    one = life(claimed(run_id=2))
    one.kill()
    assert list(sweep(runs)) == [one.folder]
    assert one.left() == []
    assert still_leaving(runs, OURS) == []
    assert survivors(runs, OURS) == ""
    assert str(bad) in caplog.text


def test_a_folder_that_goes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its record and the look at its lock."""
    gone, folder = attempt(tmp_path, 1), attempt(tmp_path, 2)
    Held(gone, claimed(), OURS).release()
    Held(folder, claimed(run_id=2), OURS).release()
    real = os.open

    def remove_first(path: Any, *rest: Any, **named: Any) -> int:
        if path == gone / LOCK:
            (gone / LOCK).unlink(missing_ok=True)
            (gone / RECORD).unlink(missing_ok=True)
            gone.rmdir()
        return real(path, *rest, **named)

    monkeypatch.setattr("worker.orphans.os.open", remove_first)
    assert list(sweep(tmp_path)) == [folder]


def test_another_machine_s_attempt_is_not_locked(tmp_path: Path) -> None:
    """Its lock may be one that this user must not open."""
    folder = attempt(tmp_path, 1)
    held = Held(folder, claimed(), OURS)
    (folder / RECORD).write_text(held.record.model_copy(update={"host": "another-host"}).model_dump_json())
    held.release()
    (folder / LOCK).unlink()
    assert sweep(tmp_path) == {}
    assert not (folder / LOCK).exists()


def test_a_runs_folder_that_cannot_be_listed_is_no_empty_one(tmp_path: Path) -> None:
    assert sweep(tmp_path / "not there yet") == {}
    (tmp_path / "runs").symlink_to(tmp_path / "runs")
    with pytest.raises(OSError, match="symbolic links"):
        sweep(tmp_path / "runs")
