"""A child and everything it starts end together: asked, killed, or orphaned."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs
from tests.processes import clean_environment, session_members, wait_for
from worker import devices
from worker.keeper import Process, kill, process
from worker.process import Child, GroupSurvives


def start(folder: Path, code: str) -> Child:
    return Child([sys.executable, "-c", code], cwd=folder, env=dict(os.environ), log=folder / "log.txt")


def alive(pid: int) -> bool:
    """Neither gone nor a zombie that waits for a parent to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Starts a program in its own session's group, and one in another group of the same session.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, process_group=0).pid]
print(*pids, flush=True)
time.sleep(600)
"""


def family(folder: Path) -> tuple[Child, list[int]]:
    child = start(folder, FAMILY)
    log = folder / "log.txt"
    wait_for(lambda: log.read_text().endswith("\n"), "the family has started")
    return child, [int(pid) for pid in log.read_text().split()]


def test_status_and_output(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    wait_for(child.ended, "the child ends")
    assert child.reap() == 3
    assert child.reap() == 3
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["err", "out"]


def test_terminate_reaches_the_child(tmp_path: Path) -> None:
    child = start(tmp_path, "print('up', flush=True); import time; time.sleep(600)")
    wait_for(lambda: (tmp_path / "log.txt").read_text(), "the child is up")
    child.terminate()
    wait_for(child.ended, "the child ends")
    assert child.reap() == -signal.SIGTERM


def test_reap_leaves_nobody(tmp_path: Path) -> None:
    child, pids = family(tmp_path)
    assert set(session_members(child.pid)) == {child.pid, *pids}
    child.terminate()  # which all three ignore
    assert not child.ended()
    assert child.reap() == -signal.SIGKILL
    assert session_members(child.pid) == []
    assert not any(alive(pid) for pid in pids)


def test_reap_takes_what_a_dead_leader_left(tmp_path: Path) -> None:
    child, pids = family(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    wait_for(child.ended, "the leader ends")
    assert all(alive(pid) for pid in pids)
    assert child.reap() == -signal.SIGKILL
    assert not any(alive(pid) for pid in pids)


def test_the_child_dies_with_its_worker(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time; from pathlib import Path; from worker.process import Child; here = Path.cwd();"
            "c = Child([sys.executable, '-c', 'import time; time.sleep(600)'], cwd=here, env=dict(os.environ), "
            "log=here / 'log.txt'); print(c.pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    assert alive(pid)
    worker.kill()
    worker.wait()
    wait_for(lambda: not alive(pid), "the orphan dies")
    worker.stdout.close()


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    child = Child(["no-such-program"], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log.txt")
    wait_for(child.ended, "the keeper says so")
    assert child.reap() == 127
    assert "cannot start no-such-program: FileNotFoundError" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("name", ["a) Z (b", "plain"])
def test_members_are_read_past_any_process_name(tmp_path: Path, name: str) -> None:
    """A program may carry brackets and letters of states in its name."""
    (tmp_path / name).symlink_to("/bin/sleep")
    child = Child([str(tmp_path / name), "600"], cwd=tmp_path, env={}, log=tmp_path / "log.txt")
    wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip() == name, "the program runs")
    assert session_members(child.pid) == [child.pid]
    assert child.reap() == -signal.SIGKILL


def test_a_process_that_may_not_be_looked_at_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that hides the processes of other users (hidepid=1)."""
    child = start(tmp_path, "import time; time.sleep(600)")

    def hidden(path: str, mode: str) -> Any:
        if path == "/proc/1/stat":
            raise PermissionError
        return open(path, mode)

    monkeypatch.setattr("worker.keeper.open", hidden, raising=False)
    assert session_members(child.pid) == [child.pid]
    assert child.reap() == -signal.SIGKILL


def nvidia_smi(folder: Path, code: str) -> None:
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{code}\n")
    program.chmod(0o755)


def test_an_nvidia_smi_that_answers_no_more_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had shown a GPU, so the driver hangs, and the trainer may still hold it. Here the kill took all the time."""
    prove = Child._prove_devices_free
    monkeypatch.setattr(Child, "_prove_devices_free", lambda child, deadline: prove(child, time.monotonic()))
    monkeypatch.setattr(devices, "_shown", False)
    monkeypatch.setattr("worker.process._ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi(tmp_path, "echo 0, GPU-aa11-0000, NVIDIA A, 1")
    assert len(devices.gpus()) == 1
    nvidia_smi(tmp_path, "exec sleep 600")
    child = start(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(GroupSurvives, match="nvidia-smi does not say whether a GPU still counts") as caught:
        child.reap()
    assert child.pid in caught.value.holders
    assert session_members(child.pid) == []


def test_an_nvidia_smi_that_comes_back_in_time_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_shown", True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    nvidia_smi(tmp_path, f"echo asked >> {tmp_path / 'asked'}; test $(wc -l < {tmp_path / 'asked'}) -ge 3")
    assert start(tmp_path, "import time; time.sleep(600)").reap() == -signal.SIGKILL
    assert (tmp_path / "asked").read_text() == "asked\n" * 3


def test_an_nvidia_smi_on_a_machine_without_gpus_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_shown", False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    nvidia_smi(tmp_path, "exit 9")
    assert devices.gpus() == []
    assert start(tmp_path, "import time; time.sleep(600)").reap() == -signal.SIGKILL


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
    other = subprocess.Popen(["sleep", "600"])
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
        other.wait()


def no_pidfds(pid: int) -> int:
    """As a kernel before Linux 5.3."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


# A trainer whose one program is another user's, as of sudo, and a supervisor that may not signal that one: it is root
# without the right to signal everybody.
TWO_USERS = "setpriv --reuid 65534 --clear-groups sleep 600 & sleep 600 & sleep 600"
WITHOUT_RIGHT = """
import os, sys
from pathlib import Path
from worker import process
process._KILL_SECONDS, left = 1.0, []
here = Path.cwd()
child = process.Child(["sh", "-c", sys.argv[1]], cwd=here, env=dict(os.environ), log=here / "log.txt")
print(child.pid, flush=True)
sys.stdin.readline()
for _ in range(60):  # on a busy machine what is killed may need longer to end
    try:
        child.reap()
        break
    except process.GroupSurvives as error:
        left = [one.pid for one in error.left]
        if len(left) == 1:
            break
print(*left, flush=True)
os._exit(0)
"""


def test_what_became_another_user_is_told_and_hides_nobody(tmp_path: Path) -> None:
    """Neither from the supervisor nor from the keeper."""
    needs("root")
    supervisor = subprocess.Popen(
        ["setpriv", "--bounding-set", "-kill", sys.executable, "-c", WITHOUT_RIGHT, TWO_USERS],
        env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert supervisor.stdout is not None
    session = int(supervisor.stdout.readline())
    try:
        wait_for(
            lambda: [psutil.Process(pid).name() for pid in session_members(session)].count("sleep") == 3, "all run"
        )
        (other,) = [pid for pid in session_members(session) if psutil.Process(pid).uids().real == 65534]
        told, _ = supervisor.communicate("reap\n")
        assert told.split() == [str(other)]
        assert session_members(session) == [other]
    finally:
        for pid in session_members(session):
            os.kill(pid, signal.SIGKILL)
