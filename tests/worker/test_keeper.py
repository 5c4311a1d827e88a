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
    family = life()
    assert len(family.alive()) == 5
    if killed:
        family.kill(*killed)
        wait_for(lambda: family.ask("ended"), "the supervisor notices")
    else:  # no signal that is meant for the trainer ends it, or the keeper, as a service manager sends them to all
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(family.keeper, number)
        assert family.ask("ended") is False
        assert family.keeper in family.alive()
    if killed == ["trainer"]:
        assert len(family.alive()) == 4, "what it left lives on below the keeper"
    status = family.ask("reap")
    assert killed == ["keeper", "trainer"] or status == -signal.SIGKILL
    assert family.alive() == []


def test_a_keeper_that_is_stopped(life: Any) -> None:
    family = life()
    os.kill(family.keeper, signal.SIGSTOP)
    assert family.ask("reap") == -signal.SIGKILL
    assert family.alive() == []


@pytest.mark.parametrize("killed", [["supervisor"], ["supervisor", "trainer"]], ids="-".join)
def test_nobody_outlives_the_supervisor(life: Any, killed: list[str]) -> None:
    family = life()
    family.kill(*killed)
    wait_for(lambda: not family.alive(), lambda: f"left: {family.alive()}")


def test_zombies_that_the_trainer_leaves_are_collected(life: Any) -> None:
    family = life(trainer=FORKS)
    wait_for(lambda: (family.folder / "done").exists(), "they were forked")
    zombies = lambda: [row for row in processes() if row.parent == family.keeper and not row.lives]  # noqa: E731
    wait_for(lambda: not zombies(), lambda: str(zombies()))
    assert family.ask("ended") is False


@pytest.mark.parametrize("end", ["supervisor", "reap"])
def test_a_control_group_holds_all_and_is_removed(life: Any, end: str) -> None:
    needs("cgroup")
    family = life("group")
    group = Cgroup(Path(family.record.cgroup))
    assert sorted(group.pids()) == sorted(family.members())
    if end == "reap":
        family.ask("reap")
    else:
        family.kill("supervisor")
        wait_for(lambda: not group.folder.exists(), lambda: f"left: {family.alive()}")
    assert family.alive() == []
    assert not group.folder.exists()


def test_the_keeper_is_killed_and_the_group_is_what_finds_the_rest(life: Any) -> None:
    """A supervisor that adopts nobody, as one inside another program: only the control group knows them all."""
    needs("cgroup")
    family = life("group", "no reaper")
    family.kill("keeper")
    wait_for(lambda: family.ask("ended"), "the supervisor notices")
    assert family.ask("reap") == -signal.SIGKILL
    assert family.alive() == []


def test_a_kill_for_want_of_memory_is_counted(tmp_path: Path) -> None:
    needs("memory-cgroup")
    parent = memory_cgroup()
    assert parent is not None
    group = parent / f"cohort-test-{tmp_path.name}"
    group.mkdir()
    for name in ("memory.max", "memory.limit_in_bytes", "memory.swap.max", "memory.memsw.limit_in_bytes"):
        if (group / name).exists():
            (group / name).write_text("0" if name == "memory.swap.max" else str(64 << 20))
    try:
        words = [sys.executable, "-c", GREEDY, str(group), str(tmp_path)]
        environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    finally:
        group.rmdir()
    assert done.stdout == "-9 True\n-9 False\n", done.stderr
