"""A child and everything it starts end together: asked, killed, or orphaned."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_for
from worker.process import Child, session_members


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
