"""Keeper, supervisor and trainer are killed in every order: whatever the trainer started is gone afterwards, also what
left its session and its parent.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import memory_cgroup, needs
from tests.processes import clean_environment, wait_for
from tests.worker.stand_in import ROOT
from worker.cgroup import Cgroup
from worker.keeper import processes

# A trainer of which many die as orphans: none may pile up below the keeper.
FORKS = """
import os, time
for _ in range(30):
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(0.05)
        os._exit(0)
    os.wait()
open("done", "w").close()
time.sleep(600)
"""

# A supervisor in a group with little memory, whose trainer asks for much; then one whose trainer does not.
GREEDY = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
from worker.process import Child
here = Path(sys.argv[2])
child = Child([sys.executable, "-c", "b = bytearray(512 << 20)"], cwd=here, env=dict(os.environ), log=here / "log.txt")
while not child.ended(): pass
print(child.reap(), child.ran_out_of_memory())
calm = Child([sys.executable, "-c", "import time; time.sleep(600)"], cwd=here, env={}, log=here / "log.txt")
print(calm.reap(), calm.ran_out_of_memory())
"""


@pytest.mark.parametrize("killed", [[], ["trainer"], ["keeper"], ["keeper", "trainer"]], ids="-".join)
def test_reap_leaves_nobody(life: Any, killed: list[str]) -> None:
    """With the keeper the trainer dies; the rest is given to the supervisor, which ends it."""
    one = life()
    assert len(one.alive()) == 5
    if killed:
        one.kill(*killed)
        wait_for(lambda: one.ask("ended"), "the supervisor notices")
    if killed == ["trainer"]:
        assert len(one.alive()) == 4, "what it left lives on below the keeper"
    status = one.ask("reap")
    assert killed == ["keeper", "trainer"] or status == -signal.SIGKILL
    assert one.alive() == []


def test_a_keeper_that_is_stopped(life: Any) -> None:
    one = life()
    os.kill(one.keeper, signal.SIGSTOP)
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


@pytest.mark.parametrize("killed", [["supervisor"], ["supervisor", "trainer"]], ids="-".join)
def test_nobody_outlives_the_supervisor(life: Any, killed: list[str]) -> None:
    one = life()
    one.kill(*killed)
    wait_for(lambda: not one.alive(), lambda: f"left: {one.alive()}")


def test_the_trainer_does_not_outlive_supervisor_and_keeper(life: Any) -> None:
    """What it left elsewhere then is a matter for the record on the disk (test_orphans.py)."""
    one = life()
    one.kill("supervisor", "keeper")
    assert one.trainer not in one.alive()


def test_signals_meant_for_the_trainer_do_not_end_the_keeper(life: Any) -> None:
    """As a service manager sends them to everything at once."""
    one = life()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(one.keeper, number)
    assert one.ask("ended") is False
    assert one.keeper in one.alive()
    assert one.ask("reap") == -signal.SIGKILL


def test_the_status_is_the_trainer_s_own(life: Any) -> None:
    one = life(trainer="import sys; sys.exit(7)")
    wait_for(lambda: one.ask("ended"), "it ends")
    assert one.ask("reap") == 7


def test_zombies_that_the_trainer_leaves_are_collected(life: Any) -> None:
    one = life(trainer=FORKS)
    wait_for(lambda: (one.folder / "done").exists(), "they were forked")
    left = lambda: [each for each in processes() if each.parent == one.keeper and not each.lives]  # noqa: E731
    wait_for(lambda: not left(), lambda: str(left()))
    assert one.ask("ended") is False


@pytest.mark.parametrize("end", ["supervisor", "reap"])
def test_a_control_group_holds_all_and_is_removed(life: Any, end: str) -> None:
    needs("cgroup")
    one = life(None, "group")
    group = Cgroup(Path(one.record.cgroup))
    assert sorted(group.pids()) == sorted(one.members())
    if end == "reap":
        one.ask("reap")
    else:
        one.kill("supervisor")
        wait_for(lambda: not group.folder.exists(), lambda: f"left: {one.alive()}")
    assert one.alive() == []
    assert not group.folder.exists()


def test_the_keeper_is_killed_and_the_group_is_what_finds_the_rest(life: Any) -> None:
    """A supervisor that adopts nobody, as one inside another program: only the control group knows them all."""
    needs("cgroup")
    one = life(None, "group", "no reaper")
    one.kill("keeper")
    wait_for(lambda: one.ask("ended"), "the supervisor notices")
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_a_kill_for_want_of_memory_is_counted(tmp_path: Path) -> None:
    needs("memory-cgroup")
    parent = memory_cgroup()
    assert parent is not None
    place = parent / f"cohort-test-{tmp_path.name}"
    place.mkdir()
    for name in ("memory.max", "memory.limit_in_bytes", "memory.swap.max", "memory.memsw.limit_in_bytes"):
        if (place / name).exists():
            (place / name).write_text("0" if name == "memory.swap.max" else str(64 << 20))
    try:
        words = [sys.executable, "-c", GREEDY, str(place), str(tmp_path)]
        environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    finally:
        place.rmdir()
    assert done.stdout == "-9 True\n-9 False\n", done.stderr
