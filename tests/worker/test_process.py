"""A child and everything it starts end together, also where the kernel or a driver does not help. The kills themselves:
test_keeper.py.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs
from tests.processes import clean_environment, session_members, wait_for
from tests.worker.stand_in import ROOT
from worker import devices
from worker.keeper import Process, kill, process
from worker.process import Child, GroupSurvives


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Child]:
    return lambda *words: Child([*words], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log.txt")


def test_status_and_output(start: Any, tmp_path: Path) -> None:
    child = start(sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    wait_for(child.ended, "the child ends")
    assert [child.reap(), child.reap()] == [3, 3]
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["err", "out"]


def test_terminate_reaches_the_child(start: Any, tmp_path: Path) -> None:
    child = start("sh", "-c", "echo up; exec sleep 600")
    wait_for(lambda: (tmp_path / "log.txt").read_text(), "the child is up")
    child.terminate()
    wait_for(child.ended, "the child ends")
    assert child.reap() == -signal.SIGTERM


def test_a_program_that_does_not_exist(start: Any, tmp_path: Path) -> None:
    child = start("no-such-program")
    wait_for(child.ended, "the keeper says so")
    assert child.reap() == 127
    assert "no-such-program" in (tmp_path / "log.txt").read_text()


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

    monkeypatch.setattr("worker.keeper.open", hidden, raising=False)
    assert session_members(child.pid) == [child.pid]
    assert child.reap() == -signal.SIGKILL


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a program of this name that runs the given line of shell; none has shown a GPU yet."""
    monkeypatch.setattr(devices, "_shown", False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()

    def make(code: str) -> None:
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)

    return make


def test_an_nvidia_smi_that_answers_no_more_proves_nothing(
    start: Any, nvidia_smi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had shown a GPU, so the driver hangs, and the trainer may still hold it. Here the kill took all the time."""
    prove = Child._prove_devices_free
    monkeypatch.setattr(Child, "_prove_devices_free", lambda child, deadline: prove(child, time.monotonic()))
    monkeypatch.setattr("worker.process._ANSWER_SECONDS", 0.2)
    nvidia_smi("echo 0, GPU-aa11-0000, NVIDIA A, 1")
    assert len(devices.gpus()) == 1
    nvidia_smi("exec sleep 600")
    child = start("sleep", "600")
    with pytest.raises(GroupSurvives) as caught:
        child.reap()
    assert child.pid in caught.value.holders
    assert session_members(child.pid) == []


def test_an_nvidia_smi_that_comes_back_in_time_is_believed(
    start: Any, nvidia_smi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_shown", True)
    calls = tmp_path / "calls"
    nvidia_smi(f"echo call >> {calls}; test $(wc -l < {calls}) -ge 3")
    assert start("sleep", "600").reap() == -signal.SIGKILL
    assert calls.read_text() == "call\n" * 3


def test_an_nvidia_smi_on_a_machine_without_gpus_holds_nobody_up(start: Any, nvidia_smi: Any) -> None:
    nvidia_smi("exit 9")
    assert devices.gpus() == []
    assert start("sleep", "600").reap() == -signal.SIGKILL


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
from worker import process
process._KILL_SECONDS, left = 1.0, []
here = Path.cwd()
child = process.Child(["sh", "-c", sys.argv[1]], cwd=here, env=dict(os.environ), log=here / "log.txt")
print(child.pid, flush=True)
sys.stdin.readline()
while len(left) != 1:  # on a busy machine what is killed may need longer to end
    try:
        child.reap()
        break
    except process.GroupSurvives as error:
        left = [one.pid for one in error.left]
print(*left, flush=True)
os._exit(0)
"""


def test_what_became_another_user_is_named_and_hides_nobody(tmp_path: Path) -> None:
    """Neither from the supervisor nor from the keeper."""
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
