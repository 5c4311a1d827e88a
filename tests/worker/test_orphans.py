"""What a worker's earlier life left is ended by its own record, and by nothing else; the platform hears of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.models import Attempt, Run, RunState
from grpo_core.wire import ClaimReply
from tests.needs import needs
from tests.processes import clean_environment, wait_for
from tests.worker.conftest import Site
from tests.worker.making import NODE
from worker import orphans
from worker.cgroup import Cgroup
from worker.client import Platform, Unreachable
from worker.keeper import process
from worker.orphans import LOCK, MARK, RECORD, Held, ProcessRecord, settle, still_leaving, sweep

# A trainer that leaves a child in a session of its own, forked twice.
TRAINER = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("orphan", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""

# A supervisor under a worker of its own, as Celery's main process is.
WORKER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(600)"
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from grpo_core.wire import ClaimReply
from worker import orphans
from worker.cgroup import Cgroup
from worker.process import Child, become_reaper
become_reaper()
folder = Path(sys.argv[2])
held = orphans.Held(folder, ClaimReply.model_validate_json(sys.argv[1]))
env = {**os.environ, orphans.MARK: held.record.mark}
group = Cgroup.make("cohort-" + held.record.mark) if "group" in sys.argv else None
child = Child([sys.executable, "-c", sys.argv[3]], cwd=folder, env=env, log=folder / "log.txt", group=group)
held.started(child)
(folder / "keeper").write_text(str(child.keeper_pid))
time.sleep(600)
"""


def claimed(attempt_id: int = 1, run_id: int = 1, fence: int = 1) -> ClaimReply:
    return ClaimReply(
        attempt_id=attempt_id,
        fence=fence,
        token="t",
        run_id=run_id,
        run_name="a run",
        config={},
        files=[],
        heartbeat_seconds=1,
        lease_seconds=60,
    )


class Life:
    """A worker with a supervisor, a keeper, a trainer and what that forked."""

    def __init__(self, folder: Path, claim: ClaimReply, *also: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        root = str(Path(__file__).parents[2])
        words = [sys.executable, "-c", WORKER, SUPERVISOR, claim.model_dump_json(), str(folder), TRAINER, *also]
        self.worker = subprocess.Popen(words, env=clean_environment() | {"PYTHONPATH": root})
        wait_for(lambda: (folder / "orphan").exists() and (folder / "orphan").read_text(), "the trainer has forked")
        wait_for(lambda: (folder / "keeper").exists() and (folder / "keeper").read_text(), "the record is written")
        self.record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
        assert self.record.pid is not None
        self.trainer = self.record.pid
        self.orphan = int((folder / "orphan").read_text())
        self.keeper = int((folder / "keeper").read_text())

    def kill(self, *, worker: bool = True, keeper: bool = True) -> None:
        """The supervisor, and more of those that would have ended the rest."""
        killed = [self.record.supervisor_pid]
        killed = ([self.worker.pid] if worker else []) + killed + ([self.keeper] if keeper else [])
        for pid in killed:
            os.kill(pid, signal.SIGSTOP)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        dead = [*killed, self.trainer]  # the trainer dies with its keeper
        wait_for(lambda: not any(lives(pid) for pid in dead), lambda: f"still alive: {dead}")

    def end(self) -> None:
        for pid in (self.worker.pid, self.record.supervisor_pid, self.keeper, self.trainer, self.orphan):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        self.worker.wait()
        if self.record.cgroup is not None:
            Cgroup(Path(self.record.cgroup)).remove()


def lives(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.lives


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Any]:
    made: list[Life] = []

    def make(claim: ClaimReply | None = None, *also: str, runs: str = "runs") -> Life:
        claim = claim or claimed()
        folder = tmp_path / runs / f"run-{claim.run_id}" / f"attempt-{claim.fence}"
        made.append(Life(folder, claim, *also))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize("by", ["mark", "group"])
def test_what_outlived_everyone_is_found_by_the_record(life: Any, tmp_path: Path, by: str) -> None:
    if by == "group":
        needs("cgroup")
    one = life(None, *(["group"] if by == "group" else []))
    one.kill()
    assert lives(one.orphan)
    if by == "group":  # as of a program that has cleared its environment
        told = one.record.model_copy(update={"mark": "0" * 32})
        (one.folder / RECORD).write_text(told.model_dump_json())
    assert list(sweep(tmp_path / "runs")) == [one.folder]
    assert not lives(one.orphan)
    assert one.record.cgroup is None or not Path(one.record.cgroup).exists()


def test_a_live_supervisor_is_left_alone(life: Any, tmp_path: Path) -> None:
    one = life()
    assert sweep(tmp_path / "runs") == {}
    assert lives(one.trainer)
    assert lives(one.orphan)
    assert still_leaving(tmp_path / "runs") == []


def test_a_supervisor_that_outlives_its_worker_is_waited_for(life: Any, tmp_path: Path) -> None:
    one = life()
    one.worker.kill()
    one.worker.wait()
    assert still_leaving(tmp_path / "runs") == [1]
    assert sweep(tmp_path / "runs") == {}
    one.kill(worker=False, keeper=False)
    assert still_leaving(tmp_path / "runs") == []


def test_another_worker_s_runs_folder_is_not_looked_into(life: Any, tmp_path: Path) -> None:
    theirs = life(runs="theirs")
    theirs.kill()
    mine = life(claimed(run_id=2), runs="mine")
    mine.kill()
    assert list(sweep(tmp_path / "mine")) == [mine.folder]
    assert lives(theirs.orphan)
    assert not lives(mine.orphan)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"host": "another-host"}, False),  # a folder that two machines share
        ({"boot_id": "another boot"}, True),  # the machine was started anew: nothing of it can live
        ({"pid_namespace": "pid:[1]"}, True),  # a container was: nothing of it can be seen
    ],
)
def test_ids_of_another_place_or_time_are_never_used(
    life: Any, tmp_path: Path, changed: dict[str, str], told: bool
) -> None:
    one = life()
    one.kill()
    (one.folder / RECORD).write_text(one.record.model_copy(update=changed).model_dump_json())
    assert bool(sweep(tmp_path / "runs")) == told
    assert lives(one.orphan)


def test_an_id_that_is_somebody_else_s_by_now_is_left_alone(tmp_path: Path) -> None:
    """The record's process id belongs to a process that began at another time, with a session of its own."""
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        folder = tmp_path / "runs" / "run-1" / "attempt-1"
        folder.mkdir(parents=True)
        held = Held(folder, claimed())
        found = process(bystander.pid)
        assert found is not None
        told = {"pid": bystander.pid, "session": bystander.pid, "start_ticks": found.ticks - 1}
        (folder / RECORD).write_text(held.record.model_copy(update=told).model_dump_json())
        held.release()
        assert list(sweep(tmp_path / "runs")) == [folder]
        assert lives(bystander.pid)

        told["start_ticks"] = found.ticks  # and with its own time it is the one
        (folder / RECORD).write_text(held.record.model_copy(update=told).model_dump_json())
        sweep(tmp_path / "runs")
        assert not lives(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_the_first_process_is_never_touched(tmp_path: Path) -> None:
    first = process(1)
    assert first is not None
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    folder.mkdir(parents=True)
    held = Held(folder, claimed())
    told = held.record.model_copy(update={"pid": 1, "session": first.session, "start_ticks": first.ticks})
    held.release()
    living = orphans._living(told, None)
    assert 1 not in [one.pid for one in living]


def test_a_record_that_cannot_be_read_is_named_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / RECORD).write_text('{"run_id": ')
    assert sweep(tmp_path / "runs") == {}
    assert str(folder / RECORD) in caplog.text


def test_an_attempt_that_ended_leaves_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run-1" / "attempt-1"
    folder.mkdir(parents=True)
    held = Held(folder, claimed())
    assert json.loads((folder / RECORD).read_text())["boot_id"] == held.record.boot_id
    assert sweep(tmp_path / "runs") == {}  # held by this very process
    held.ended()
    assert sorted(path.name for path in folder.iterdir()) == [LOCK]


def test_the_mark_is_no_part_of_a_word(tmp_path: Path) -> None:
    longer = subprocess.Popen(["sleep", "600"], env={MARK: "ab" * 17, "NOT_" + MARK: "ab" * 16})
    try:
        wait_for(lambda: b"ab" * 17 in Path(f"/proc/{longer.pid}/environ").read_bytes(), "it has started")
        assert not orphans._marked(longer.pid, "ab" * 16)
        assert orphans._marked(longer.pid, "ab" * 17)
    finally:
        longer.kill()
        longer.wait()


def test_the_platform_is_told_and_the_run_goes_back_at_once(life: Any, site: Site, tmp_path: Path) -> None:
    run = site.launch()
    runs = tmp_path / "runs"
    with Platform(site.url, site.node_token) as platform:
        claim = platform.claim(run.pk, NODE)
        one = life(claim)
        settle(runs, platform)
        assert Run.objects.get().state == RunState.STARTING
        one.kill()
        settle(runs, platform)
        run.refresh_from_db()
        assert (run.state, run.error_code) == (RunState.QUEUED, "worker_lost")
        assert Attempt.objects.get().state == "lost"
        assert not (one.folder / RECORD).exists()
        settle(runs, platform)
        assert Run.objects.get().state == RunState.QUEUED


def test_a_platform_that_does_not_hear_is_told_later(life: Any, site: Site, tmp_path: Path) -> None:
    run = site.launch()
    with Platform(site.url, site.node_token) as platform:
        one = life(platform.claim(run.pk, NODE))
        one.kill()
        with Platform("http://127.0.0.1:9", site.node_token) as nobody, pytest.raises(Unreachable):
            settle(tmp_path / "runs", nobody)
        assert not lives(one.orphan)
        settle(tmp_path / "runs", platform)
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
