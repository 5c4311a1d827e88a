"""Nothing is left of a box: not when it ends, not when whoever asked for it is killed at any moment."""

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from grpo_core.errors import SandboxError
from grpo_core.runtime import cgroups
from grpo_core.sandbox import BoxEnded
from tests.processes import DEADLINE, below, lives, wait_for

from .conftest import PROGRAMS
from .machine import processes_with

ASKER = PROGRAMS["asker with boxes"]
LONG = "[sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)', sys.argv[-1]]"


@pytest.fixture
def token():
    return f"token-{os.urandom(8).hex()}"


def folders(processes):
    """Of boxes of Landlock, which have no /tmp of their own."""
    paths = set()
    for process in processes:
        with suppress(psutil.Error):
            paths.add(Path(process.environ().get("TMPDIR", "/")))
    return {path for path in paths if "cohort-box-" in str(path)}


def gone(left, what):
    wait_for(lambda: not [*left()], f"{what} to be gone")


def die(level, token, after):
    """A process with boxes is killed `after` so many seconds, or when all of its boxes are open."""
    with (
        subprocess.Popen([sys.executable, "-c", ASKER, level, token], stdout=subprocess.PIPE, text=True) as asker,
        ExitStack() as stack,
    ):
        stack.callback(asker.kill)
        assert asker.stdout is not None
        assert asker.stdout.readline() == "ready\n"
        if after is None:
            assert asker.stdout.readline() == "open\n"
            wait_for(lambda: len(processes_with(token)) >= 10, "the programs in the boxes")
        else:
            time.sleep(after)
        started = below(asker.pid)
        left = folders(started)
        assert started
        assert left or (level, after) != ("landlock", None)
    gone(lambda: filter(lives, started), "reaper and boxes")
    gone(lambda: processes_with(token), "the programs")
    gone(lambda: [path for path in left if path.exists()], "folders")


CHANCE = random.Random(0)
MOMENTS = [CHANCE.uniform(0, 0.15) for _ in range(8)]


@pytest.mark.parametrize("moments", [[None], pytest.param(MOMENTS, marks=pytest.mark.slow)], ids=["open", "any"])
@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_boxes_end_with_a_parent_that_is_killed_at_any_moment(level, sandboxes, token, moments):
    sandboxes(level)
    for number, after in enumerate(moments):
        die(level, f"{token}-{number}", after)


def test_boxes_end_with_a_keeper_that_is_killed(boxes, token):
    """It is trouble of ours, never the program's doing; the next box has a new reaper."""
    box = boxes.open(f"import os, sys\nos.execv(sys.executable, {LONG})", arguments=[token])
    reaper = boxes._reaper._process
    assert reaper is not None
    reaper.kill()
    with pytest.raises(SandboxError, match="reaper"):
        box.kill()
    box.close()
    gone(lambda: processes_with(token), "the program")
    assert boxes.run("print(1)").stdout == b"1\n"


def test_what_a_program_leaves_behind_is_gone_when_its_end_is_told(each, token):
    program = f"""
import os, sys
for _ in range(5):
    read, write = os.pipe()
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        os.close(1); os.close(2)
        os.execv(sys.executable, {LONG})  # closes `write`
    os.close(write); os.read(read, 1)
"""
    assert each.run(program, arguments=[token]).end == "exited"
    assert processes_with(token) == []


def test_folders_however_deep_or_closed_are_removed(sandboxes):
    ran = sandboxes("landlock").run(PROGRAMS["folders deep and closed"])
    folder = Path(ran.stdout.decode().strip()).parent
    assert folder.name.startswith("cohort-box-"), ran
    assert not folder.exists()


def test_no_control_group_is_left(boxes):
    parents = {parent for parent in cgroups._limit_parents() if parent}
    if not parents:
        pytest.skip("needs a control group that this user may make others in")
    boxes.run("print(1)")
    boxes.open("import time; time.sleep(60)").close()
    prefix = f"cohort-box-{os.getpid()}-"
    assert [folder for parent in parents for folder in parent.iterdir() if folder.name.startswith(prefix)] == []


def test_closing_ends_every_box(boxes, token):
    program = f"import boxed, os, sys\nif os.fork() == 0: os.execv(sys.executable, {LONG})\n"
    box = boxes.open(f"{program}boxed.send(b'up'); boxed.receive()", arguments=[token])
    assert box.receive(DEADLINE) == b"up"
    boxes.close()
    gone(lambda: processes_with(token), "the program")
    with pytest.raises((BoxEnded, SandboxError)):
        box.receive(DEADLINE)
