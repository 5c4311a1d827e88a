"""Keeper, supervisor and trainer are killed in every order: whatever the trainer started is gone afterwards, also what
left its session and its parent.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import memory_cgroup, needs
from tests.processes import clean_environment, wait_for
from tests.worker.stand_in import ROOT
from worker.cgroup import Cgroup
from worker.keeper import processes

# The trainer: deaf to SIGTERM, with a child in a group of its own, one in a session of its own, and one that was forked
# twice and whose parent is gone. Each writes down its process id.
TRAINER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(): open(f"pid-{os.getpid()}", "w").close()
sleep = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
        "open(f'pid-{os.getpid()}', 'w').close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleep], process_group=0)
subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note()
        time.sleep(600)
    os._exit(0)
os.wait()
note()
time.sleep(600)
"""

# What the supervisor is to the keeper: it starts the trainer, tells the ids, and reaps when it is asked to.
SUPERVISOR = """
import json, os, sys, threading
from pathlib import Path
from worker.cgroup import Cgroup
from worker.process import Child, become_reaper
here, group = Path(sys.argv[1]), sys.argv[3]
if "reaper" in sys.argv: become_reaper()
child = Child([sys.executable, "-c", sys.argv[2]], cwd=here, env=dict(os.environ), log=here / "log.txt",
              group=Cgroup.make(group) if group else None)
print(json.dumps([child.pid, child.keeper_pid]), flush=True)
for word in sys.stdin:
    print(json.dumps(child.reap() if word == "reap\\n" else child.ended()), flush=True)
"""

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


class Family:
    """A supervisor with a keeper, a trainer and its three descendants."""

    def __init__(self, folder: Path, trainer: str, *, reaper: bool, group: str) -> None:
        words = [sys.executable, "-c", SUPERVISOR, str(folder), trainer, group, *(["reaper"] if reaper else [])]
        self._process = subprocess.Popen(
            words,
            env=clean_environment() | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        self.supervisor = self._process.pid
        self.trainer, self.keeper = self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, word: str) -> Any:
        print(word, file=self._process.stdin, flush=True)
        return self._hear()

    def members(self) -> list[int]:
        return [int(path.name.removeprefix("pid-")) for path in self.folder.glob("pid-*")]

    def alive(self) -> list[int]:
        known = {self.keeper, self.trainer, *self.members()}
        return sorted(one.pid for one in processes() if one.pid in known and one.lives)

    def kill(self, *names: str) -> None:
        """So that none can react to another's end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for name in names:
                os.kill(getattr(self, name), number)

    def end(self) -> None:
        self._process.kill()
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    made: list[Family] = []

    def make(trainer: str = TRAINER, *, reaper: bool = True, group: str = "") -> Family:
        made.append(Family(tmp_path, trainer, reaper=reaper, group=group))
        if trainer == TRAINER:
            wait_for(lambda: len(made[0].members()) == 4, "the family has started")
        return made[0]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def group() -> str:
    """The name of a control group."""
    needs("cgroup")
    return f"cohort-test-{os.getpid()}"


@pytest.mark.parametrize("killed", [[], ["trainer"], ["keeper"], ["keeper", "trainer"]], ids="-".join)
def test_reap_leaves_nobody(family: Any, killed: list[str]) -> None:
    """With the keeper the trainer dies; the rest is given to the supervisor, which ends it."""
    one = family()
    assert len(one.alive()) == 5
    one.kill(*killed)
    if killed:
        wait_for(lambda: one.ask("ended"), "the supervisor notices")
    if killed == ["trainer"]:
        assert len(one.alive()) == 4, "what it left lives on below the keeper"
    status = one.ask("reap")
    assert killed == ["keeper", "trainer"] or status == -signal.SIGKILL
    assert one.alive() == []


def test_a_keeper_that_is_stopped(family: Any) -> None:
    one = family()
    os.kill(one.keeper, signal.SIGSTOP)
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


@pytest.mark.parametrize("killed", [["supervisor"], ["supervisor", "trainer"]], ids="-".join)
def test_nobody_outlives_the_supervisor(family: Any, killed: list[str]) -> None:
    one = family()
    one.kill(*killed)
    wait_for(lambda: not one.alive(), lambda: f"left: {one.alive()}")


def test_the_trainer_does_not_outlive_supervisor_and_keeper(family: Any) -> None:
    """What it left elsewhere then is a matter for the record on the disk (test_orphans.py)."""
    one = family()
    one.kill("supervisor", "keeper")
    wait_for(lambda: one.trainer not in one.alive(), "the kernel kills it")


def test_signals_meant_for_the_trainer_do_not_end_the_keeper(family: Any) -> None:
    """As a service manager sends them to everything at once."""
    one = family()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(one.keeper, number)
    assert one.ask("ended") is False
    assert one.keeper in one.alive()
    assert one.ask("reap") == -signal.SIGKILL


def test_the_status_is_the_trainer_s_own(family: Any) -> None:
    one = family("import sys; sys.exit(7)")
    wait_for(lambda: one.ask("ended"), "it ends")
    assert one.ask("reap") == 7


def test_zombies_that_the_trainer_leaves_are_collected(family: Any) -> None:
    one = family(FORKS)
    wait_for(lambda: (one.folder / "done").exists(), "they were forked")
    left = lambda: [each for each in processes() if each.parent == one.keeper and not each.lives]  # noqa: E731
    wait_for(lambda: not left(), lambda: str(left()))
    assert one.ask("ended") is False


@pytest.mark.parametrize("end", ["supervisor", "reap"])
def test_a_control_group_holds_all_and_is_removed(family: Any, group: str, end: str) -> None:
    one = family(group=group)
    probe = Cgroup.make(f"{group}-b")
    assert probe is not None
    probe.remove()
    assert not probe.folder.exists()
    made = Cgroup(probe.folder.with_name(group))
    assert sorted(made.pids()) == sorted({one.trainer, *one.members()})
    if end == "reap":
        one.ask("reap")
    else:
        one.kill("supervisor")
        wait_for(lambda: not made.folder.exists(), lambda: f"left: {one.alive()}")
    assert one.alive() == []
    assert not made.folder.exists()


def test_the_keeper_is_killed_and_the_group_is_what_finds_the_rest(family: Any, group: str) -> None:
    """A supervisor that adopts nobody, as one inside another program: only the control group knows them all."""
    one = family(reaper=False, group=group)
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
