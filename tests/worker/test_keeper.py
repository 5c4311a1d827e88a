"""Keeper, supervisor and trainer are killed in every order: whatever the trainer started is gone afterwards, also what
left its session and its parent.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.processes import clean_environment, wait_for
from worker.cgroup import Cgroup
from worker.keeper import processes

# The trainer: deaf to SIGTERM, with a child in its session, one in a session of its own, and one that was forked twice
# and whose parent is gone. Each writes down its process id.
TRAINER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(): open(f"pid-{os.getpid()}", "w").close()
sleep = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
        "open(f'pid-{os.getpid()}', 'w').close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleep])
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

# What the supervisor is to the keeper: it starts the trainer, tells the ids, and reaps when it is told to.
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


class Family:
    """A supervisor with a keeper, a trainer and its three descendants."""

    def __init__(self, folder: Path, trainer: str, *, reaper: bool, group: str = "") -> None:
        words = [sys.executable, "-c", SUPERVISOR, str(folder), trainer, group, *(["reaper"] if reaper else [])]
        root = str(Path(__file__).parents[2])
        self.supervisor = subprocess.Popen(
            words,
            env=clean_environment() | {"PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        self.trainer, self.keeper = self.hear()

    def hear(self) -> Any:
        assert self.supervisor.stdout is not None
        return json.loads(self.supervisor.stdout.readline())

    def ask(self, word: str) -> Any:
        assert self.supervisor.stdin is not None
        self.supervisor.stdin.write(word + "\n")
        self.supervisor.stdin.flush()
        return self.hear()

    def members(self) -> list[int]:
        return [int(path.name.removeprefix("pid-")) for path in self.folder.glob("pid-*")]

    def alive(self) -> list[int]:
        known = {self.keeper, self.trainer, *self.members()}
        return sorted(one.pid for one in processes() if one.pid in known and one.lives)

    def end(self) -> None:
        for pid in [self.supervisor.pid, *self.alive()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.supervisor.wait()
        for pipe in (self.supervisor.stdin, self.supervisor.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Any]:
    made: list[Family] = []

    def make(trainer: str = TRAINER, *, reaper: bool = True, group: str = "") -> Family:
        made.append(Family(tmp_path, trainer, reaper=reaper, group=group))
        if trainer == TRAINER:
            wait_for(lambda: len(made[0].members()) == 4, "the family has started")
        return made[0]

    yield make
    for one in made:
        one.end()


def kill(*pids: int) -> None:
    """So that none can react to another's end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_reap_takes_all_of_them(family: Any) -> None:
    one = family()
    assert len(one.alive()) == 5
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_the_trainer_is_killed(family: Any) -> None:
    one = family()
    kill(one.trainer)
    wait_for(lambda: one.ask("ended"), "the keeper says so")
    assert len(one.alive()) == 4  # what it left lives on below the keeper
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_the_supervisor_is_killed(family: Any) -> None:
    one = family()
    kill(one.supervisor.pid)
    wait_for(lambda: not one.alive(), lambda: f"left: {one.alive()}")


def test_the_keeper_leaves_no_control_group_behind(family: Any) -> None:
    needs("cgroup")
    name = f"cohort-test-{os.getpid()}"
    one = family(group=name)
    probe = Cgroup.make(f"{name}-b")
    assert probe is not None
    probe.remove()
    group = probe.folder.with_name(name)
    assert group.is_dir()
    kill(one.supervisor.pid)
    wait_for(lambda: not one.alive(), lambda: f"left: {one.alive()}")
    assert not group.exists()


def test_supervisor_and_trainer_are_killed_at_once(family: Any) -> None:
    one = family()
    kill(one.supervisor.pid, one.trainer)
    wait_for(lambda: not one.alive(), lambda: f"left: {one.alive()}")


def test_the_keeper_is_killed(family: Any) -> None:
    """The trainer dies with it; the rest is given to the supervisor, which ends it."""
    one = family()
    kill(one.keeper)
    wait_for(lambda: one.ask("ended"), "the supervisor notices")
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_the_keeper_is_killed_and_the_group_is_what_finds_the_rest(family: Any) -> None:
    """A supervisor that adopts nobody, as one inside another program: only the control group knows them all."""
    needs("cgroup")
    one = family(reaper=False, group=f"cohort-test-{os.getpid()}")
    kill(one.keeper)
    wait_for(lambda: one.ask("ended"), "the supervisor notices")
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_the_keeper_is_stopped(family: Any) -> None:
    one = family()
    os.kill(one.keeper, signal.SIGSTOP)
    assert one.ask("reap") == -signal.SIGKILL
    assert one.alive() == []


def test_keeper_and_trainer_are_killed_at_once(family: Any) -> None:
    one = family()
    kill(one.keeper, one.trainer)
    wait_for(lambda: one.ask("ended"), "the supervisor notices")
    one.ask("reap")
    assert one.alive() == []


def test_the_trainer_does_not_outlive_supervisor_and_keeper(family: Any) -> None:
    """What it left elsewhere then is a matter for the record on the disk (test_orphans.py)."""
    one = family()
    kill(one.supervisor.pid, one.keeper)
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
    """It forks many that die as orphans; none may pile up below the keeper."""
    code = """
import os, time
for _ in range(30):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
open("done", "w").close()
time.sleep(600)
"""
    one = family(code)
    wait_for(lambda: (one.folder / "done").exists(), "they were forked")
    left = lambda: [each for each in processes() if each.parent == one.keeper and not each.lives]  # noqa: E731
    wait_for(lambda: not left(), lambda: str(left()))
    assert one.ask("ended") is False


def test_a_control_group_holds_what_left_its_parents(family: Any) -> None:
    needs("cgroup")
    name = f"cohort-test-{os.getpid()}"
    one = family(group=name)
    group = Cgroup.make(f"{name}-b")
    assert group is not None
    group.remove()
    assert not group.folder.exists()
    group = Cgroup(group.folder.with_name(name))
    assert sorted(group.pids()) == sorted([one.trainer, *[pid for pid in one.members() if pid != one.trainer]])
    one.ask("reap")
    assert not group.folder.exists()


def test_a_kill_for_want_of_memory_is_counted(tmp_path: Path) -> None:
    """A group of 64 MB, in which a trainer asks for 512 MB."""
    needs("memory-cgroup")
    place = memory_group(tmp_path.name)
    code = """
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
    environment = clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        words = [sys.executable, "-c", code, str(place), str(tmp_path)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    finally:
        place.rmdir()
    assert done.stdout == "-9 True\n-9 False\n", done.stderr


def memory_group(name: str) -> Path:
    """A group with little memory, of whichever version; made by needs' own rule."""
    from tests.needs import memory_cgroup

    place = memory_cgroup()
    assert place is not None
    folder = place / f"cohort-test-{name}"
    folder.mkdir()
    for limit in ("memory.max", "memory.limit_in_bytes"):
        if (folder / limit).exists():
            (folder / limit).write_text(str(64 << 20))
    for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
        if (folder / swap).exists():
            (folder / swap).write_text("0" if swap == "memory.swap.max" else str(64 << 20))
    return folder
