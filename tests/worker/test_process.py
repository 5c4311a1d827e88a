"""A child and everything it starts end together, also what left its session and its parent, where the kernel or a
driver does not help, and when reaper, supervisor and trainer are killed in whatever order.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.runtime.cgroups import Cgroup
from tests.needs import memory_cgroup, needs
from tests.processes import clean_environment, session_members, wait_for
from tests.worker.stand_in import ROOT
from worker.processes.child import Child
from worker.processes.reaper import Process, kill, process, processes

# A trainer of which many die as orphans: none may pile up below the reaper.
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
from worker.processes.child import Child
here = Path(sys.argv[2])
child = Child([sys.executable, "-c", "b = bytearray(512 << 20)"], cwd=here, env=dict(os.environ), log=here / "log.txt")
while not child.ended(): pass
print(child.reap(), child.ran_out_of_memory())
calm = Child([sys.executable, "-c", "import time; time.sleep(600)"], cwd=here, env={}, log=here / "log.txt")
print(calm.reap(), calm.ran_out_of_memory())
"""


@pytest.mark.parametrize("killed", [[], ["trainer"], ["reaper"], ["reaper", "trainer"]], ids="-".join)
def test_reap_leaves_nobody(life: Any, killed: list[str]) -> None:
    """With the reaper the trainer dies; the rest is given to the supervisor, which ends it."""
    family = life()
    assert len(family.alive()) == 5
    if killed:
        family.kill(*killed)
        wait_for(lambda: family.ask("ended"), "the supervisor notices")
    else:  # no signal that is meant for the trainer ends it, or the reaper, as a service manager sends them to all
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(family.reaper, number)
        assert family.ask("ended") is False
        assert family.reaper in family.alive()
    if killed == ["trainer"]:
        assert len(family.alive()) == 4, "what it left lives on below the reaper"
    status = family.ask("reap")
    assert killed == ["reaper", "trainer"] or status == -signal.SIGKILL
    assert family.alive() == []


def test_a_reaper_that_is_stopped(life: Any) -> None:
    family = life()
    os.kill(family.reaper, signal.SIGSTOP)
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
    zombies = lambda: [row for row in processes() if row.parent == family.reaper and not row.lives]  # noqa: E731
    wait_for(lambda: not zombies(), lambda: str(zombies()))
    assert family.ask("ended") is False


@pytest.mark.parametrize("end", ["supervisor", "reap"])
def test_a_control_group_holds_all_and_is_removed(life: Any, end: str) -> None:
    needs("cgroup")
    family = life("group")
    group = Cgroup((Path(family.record.cgroup),))
    assert sorted(group.pids()) == sorted(family.members())
    if end == "reap":
        family.ask("reap")
    else:
        family.kill("supervisor")
        wait_for(lambda: not family.alive(), lambda: f"left: {family.alive()}")
    assert family.alive() == []
    assert not group.folders[0].exists()


def test_the_reaper_is_killed_and_the_group_is_what_finds_the_rest(life: Any) -> None:
    """A supervisor that adopts nobody, as one inside another program: only the control group knows them all."""
    needs("cgroup")
    family = life("group", "no subreaper")
    family.kill("reaper")
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


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Child]:
    return lambda *words: Child([*words], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log.txt")


@pytest.mark.parametrize(
    ("words", "status", "logged"),
    [
        (("sh", "-c", "echo out; echo err >&2; exit 3"), 3, "out\nerr\n"),
        (("sh", "-c", "echo up; exec sleep 600"), -signal.SIGTERM, "up\n"),
        (("no-such-program",), 127, "no-such-program"),
    ],
)
def test_status_and_output(start: Any, tmp_path: Path, words: tuple[str, ...], status: int, logged: str) -> None:
    child = start(*words)
    wait_for(lambda: logged in (tmp_path / "log.txt").read_text(), "it is up")
    if status < 0:
        child.terminate()
    wait_for(child.ended, "the child ends")
    assert [child.reap(), child.reap()] == [status, status]


def test_members_are_read_past_any_process_name(start: Any, tmp_path: Path) -> None:
    """A program may carry brackets and letters of states in its name."""
    name = "a) Z (b"
    (tmp_path / name).symlink_to("/bin/sleep")
    child = start(str(tmp_path / name), "600")
    wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip() == name, "the program runs")
    assert session_members(child.pid) == [child.pid]
    assert child.reap() == -signal.SIGKILL


def test_a_process_that_may_not_be_looked_at_is_passed_over(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that hides the processes of other users (hidepid=1)."""
    child = start("sleep", "600")

    def hidden(path: str, mode: str) -> Any:
        if path == "/proc/1/stat":
            raise PermissionError
        return open(path, mode)

    monkeypatch.setattr("worker.processes.reaper.open", hidden, raising=False)
    assert session_members(child.pid) == [child.pid]
    assert child.reap() == -signal.SIGKILL


def killed_by_nobody(seen: Process) -> int:
    """0 when `kill` returns in a process of another user's, which may signal none of ours."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            kill(seen)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("pidfds", [True, False])
def test_another_user_s_process_may_not_be_killed_and_stays(pidfds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("root")
    if not pidfds:
        monkeypatch.setattr(os, "pidfd_open", no_pidfds)
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            seen = process(other.pid)
            assert seen is not None
            assert killed_by_nobody(seen) == 0
            assert other.poll() is None
            kill(seen._replace(ticks=seen.ticks - 1))  # whose id it has by now
            assert other.poll() is None
            kill(seen)
            assert other.wait() == -signal.SIGKILL
            kill(seen)  # who is gone
        finally:
            other.kill()


def no_pidfds(pid: int) -> int:
    """As a kernel before Linux 5.3."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


# A trainer whose one program is another user's, as of sudo, and a supervisor that may not signal that one: it is root
# without the right to signal everybody.
TWO_USERS = "setpriv --reuid 65534 --clear-groups sleep 600 & sleep 600 & sleep 600"
WITHOUT_RIGHT = """
import os, sys
from pathlib import Path
from worker.processes import child as module
module._KILL_SECONDS, left = 1.0, []
here = Path.cwd()
child = module.Child(["sh", "-c", sys.argv[1]], cwd=here, env=dict(os.environ), log=here / "log.txt")
print(child.pid, flush=True)
sys.stdin.readline()
while len(left) != 1:  # on a busy machine what is killed may need longer to end
    try:
        child.reap()
        break
    except module.GroupSurvives as error:
        left = [row.pid for row in error.left]
print(*left, flush=True)
os._exit(0)
"""


def test_what_became_another_user_is_named_and_hides_nobody(tmp_path: Path) -> None:
    """Neither from the supervisor nor from the reaper."""
    needs("root")
    supervisor = subprocess.Popen(
        ["setpriv", "--bounding-set", "-kill", sys.executable, "-c", WITHOUT_RIGHT, TWO_USERS],
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert supervisor.stdout is not None
    session = int(supervisor.stdout.readline())
    names = lambda: [psutil.Process(pid).name() for pid in session_members(session)]  # noqa: E731
    try:
        wait_for(lambda: names().count("sleep") == 3, "all run")
        (other,) = [pid for pid in session_members(session) if psutil.Process(pid).uids().real == 65534]
        left, _ = supervisor.communicate("reap\n")
        assert left.split() == [str(other)]
        assert session_members(session) == [other]
    finally:
        for pid in session_members(session):
            os.kill(pid, signal.SIGKILL)
