"""Nothing is left of a box: not when it ends, not when whoever asked for it is killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_core.errors import SandboxError
from grpo_core.sandbox import BoxEnded, Limits, Sandbox, cgroups

ASKER = """
import sys, threading
from grpo_core.sandbox import Limits
from grpo_core.sandbox.sandbox import Sandbox
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.landlock import Landlock
from grpo_core.sandbox.report import Report
level, token = sys.argv[1:]
sandbox = Sandbox(Report(level, "", (), (), "", ""), Bubblewrap() if level == "bubblewrap" else Landlock())
program = '''
import os, sys
for _ in range(3):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        break
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", sys.argv[-1]])
'''
limits = Limits(wall_seconds=600.0)
sandbox.run("")
print("ready", flush=True)
for _ in range(2):
    threading.Thread(target=lambda: sandbox.run(program, arguments=[token], limits=limits), daemon=True).start()
boxes = [sandbox.open(program, arguments=[token], limits=limits) for _ in range(2)]
print("open", flush=True)
threading.Event().wait()
"""


def _mine(word: str) -> list[int]:
    """Every live process with the word among its arguments, also as part of one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if word.encode() in (place / "cmdline").read_bytes():
                    found.append(int(place.name))
            except OSError:
                continue
    return found


def _until_gone(left: Callable[[], list[object]]) -> list[object]:
    """What is left after the time that a machine under load may take."""
    deadline = time.monotonic() + 60
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _keepers_and_boxes(asker: int) -> list[int]:
    """All processes below one, whoever is their parent by now: it leads a session, and its keeper another."""
    return [pid for pid in _descendants(asker) if pid != asker]


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(place.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _folders() -> set[str]:
    return {path.name for path in Path("/tmp").glob("cohort-box-*")}


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_boxes_end_with_a_parent_that_is_killed(level: str, sandboxes: Callable[[str], Sandbox]) -> None:
    sandboxes(level)
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    before = _folders()
    for moment in ["open", *[None] * 8]:
        token = f"token-{os.urandom(8).hex()}"
        with subprocess.Popen([sys.executable, "-c", ASKER, level, token], stdout=subprocess.PIPE, text=True) as asker:
            assert asker.stdout is not None
            assert asker.stdout.readline() == "ready\n"
            if moment == "open":
                assert asker.stdout.readline() == "open\n"
                absent = _until_gone(lambda token=token: [] if len(_mine(token)) >= 10 else ["some"])  # type: ignore[misc]
                assert absent == []
            else:
                time.sleep(chance.uniform(0, 0.15))
            below = _keepers_and_boxes(asker.pid)
            assert below
            asker.send_signal(signal.SIGKILL)
        assert _until_gone(lambda below=below: [pid for pid in below if _lives(pid)]) == []  # type: ignore[misc]
        assert _until_gone(lambda token=token: list(_mine(token))) == []  # type: ignore[misc]
    assert _until_gone(lambda: list(_folders() - before)) == []


def test_boxes_end_with_a_keeper_that_is_killed(boxes: Sandbox) -> None:
    """What ran is told as trouble of ours, never as the program's doing; the next box has a new keeper."""
    token = f"token-{os.urandom(8).hex()}"
    program = (
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[-1]])"
    )
    box = boxes.open(program, arguments=[token], limits=Limits(wall_seconds=600.0))
    keeper = boxes._keeping._process
    assert keeper is not None
    keeper.kill()
    with pytest.raises(SandboxError, match="keeper ended"):
        box.kill()
    box.close()
    assert _until_gone(lambda: list(_mine(token))) == []
    assert boxes.run("print(1)").stdout == b"1\n"


def test_what_a_program_leaves_behind_is_gone_when_its_end_is_told(each: Sandbox) -> None:
    program = """
import os, sys
for _ in range(5):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        os.close(1); os.close(2)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", sys.argv[1]])
import time; time.sleep(0.2)
"""
    token = f"token-{os.urandom(8).hex()}"
    assert each.run(program, arguments=[token]).end == "exited"
    assert _mine(token) == []


def test_folders_however_deep_or_closed_are_removed(sandboxes: Callable[[str], Sandbox]) -> None:
    landlock = sandboxes("landlock")
    program = """
import os
os.chdir(os.environ["TMPDIR"])
for name in ("a b", "\\n", "-rf"): open(name, "w").close()
os.symlink("/", "link")
os.mkdir("closed", 0); os.umask(0o777); os.mkdir("also")
os.umask(0)
for _ in range(300): os.mkdir("d"); os.chdir("d")
print(os.environ["TMPDIR"])
"""
    ran = landlock.run(program, limits=Limits(wall_seconds=60.0))
    folder = Path(ran.stdout.decode().strip()).parent
    assert folder.name.startswith("cohort-box-"), ran
    assert not folder.exists()


def test_no_control_group_is_left(boxes: Sandbox) -> None:
    parents = {parent for parent in cgroups._parents() if parent}
    if not parents:
        pytest.skip("needs a control group that this user may make others in")
    boxes.run("print(1)")
    boxes.open("import time; time.sleep(60)").close()
    prefix = f"cohort-box-{os.getpid()}-"
    assert [folder for parent in parents for folder in parent.iterdir() if folder.name.startswith(prefix)] == []


def test_closing_ends_every_box(sandboxes: Callable[[str], Sandbox]) -> None:
    boxes = sandboxes("bubblewrap")
    token = f"token-{os.urandom(8).hex()}"
    program = "import boxed, os, sys\nif os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', "
    program += "'import time; time.sleep(600)', sys.argv[-1]])\nboxed.send(b'up'); boxed.receive()"
    box = boxes.open(program, arguments=[token], limits=Limits(wall_seconds=600.0))
    assert box.receive(30) == b"up"
    boxes.close()
    assert _until_gone(lambda: list(_mine(token))) == []
    with pytest.raises((BoxEnded, SandboxError)):
        box.receive(30)
