"""A program held open: frames both ways, and that nobody but it can speak for it."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_core.sandbox import Box, BoxEnded, BoxTimeout, Limits
from grpo_core.sandbox.box import Launched
from tests.processes import DEADLINE, wait_for

from .conftest import PATIENT, PROGRAMS

ECHO = "import boxed\nwhile True: boxed.send(boxed.receive()[::-1])"
SLEEPS = "import time; time.sleep(600)"


def end_of(box):
    with pytest.raises(BoxEnded) as caught:
        box.receive(DEADLINE)
    return caught.value.ran


def test_frames_both_ways(each):
    with each.open(ECHO) as box:
        for message in (b"", b"abc", bytes(range(256)) * 4000):
            box.send(message)
            assert box.receive(DEADLINE) == message[::-1]
        with pytest.raises(BoxTimeout):  # and lives on
            box.receive(0.05)
        box.send(b"ab")
        assert box.receive(DEADLINE) == b"ba"


def test_the_channel_s_number_comes_before_the_arguments_and_its_process_cannot_be_looked_into(each):
    program = "import boxed, os, sys\nos.fstat(int(sys.argv[1]))\nboxed.send(repr(sys.argv[2:]).encode())"
    with each.open(program, arguments=["x", "y"], files={"a": b"1"}) as box:
        assert box.receive(DEADLINE) == b"['x', 'y']"
    program = "import boxed, ctypes; boxed.send(str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)).encode()); boxed.receive()"
    with each.open(program) as box:
        assert box.receive(DEADLINE) == b"0"


def test_the_end_comes_with_what_was_printed(each, monkeypatch):
    monkeypatch.setattr("grpo_core.sandbox.box._GRACE", DEADLINE)
    program = "import boxed, sys\nprint('hello', flush=True)\nboxed.receive()\nsys.exit(3)"
    with each.open(program) as box:
        box.send(b"go")
        ran = end_of(box)
        assert (ran.end, ran.status, ran.stdout) == ("exited", 3, b"hello\n")
        assert box.printed()[0] == b"hello\n"
        assert end_of(box) is ran
        with pytest.raises(BoxEnded):
            box.send(b"x" * 10**6)
        assert box.kill() is ran


def test_the_wall_clock_holds_while_nobody_asks_and_while_a_box_does_not_read(each):
    with each.open(SLEEPS, limits=Limits(wall_seconds=0.2)) as box:
        box._thread.join()
        assert end_of(box).end == "wall"
    with each.open(SLEEPS, limits=Limits(wall_seconds=0.5)) as box:
        with pytest.raises(BoxEnded) as caught:
            box.send(bytes(10**8))
        assert caught.value.ran.end == "wall"


def test_kill_is_a_signal_and_a_box_may_live_without_end(each):
    box = each.open(ECHO, limits=Limits(wall_seconds=float("inf"), cpu_seconds=10**9))
    box.send(b"ab")
    assert box.receive(DEADLINE) == b"ba"
    ran = box.kill()
    assert (ran.end, ran.status) == ("signal", -9)


FORGED = ["os.write(fd, bytes(32) + (1).to_bytes(4, 'big') + b'1')", "os.write(fd, b'1')"]
FORGED += ["os.write(fd, (1).to_bytes(4, 'big') + b'1')", "import boxed; boxed.send(bytes(2**24 + 1))"]
FORGED += ["import boxed; boxed.send(b'x'); os.write(fd, bytes(40))"]


@pytest.mark.parametrize("forged", FORGED)
def test_frames_that_are_not_its_own_end_a_box(each, forged):
    with each.open(f"import os, sys, time\nfd = int(sys.argv[1])\n{forged}\ntime.sleep(600)") as box:
        if "send(b'x')" in forged:
            assert box.receive(DEADLINE) == b"x"
        assert end_of(box).end == "output"


def test_what_printed_too_much_cannot_answer_before_it_is_killed(each, monkeypatch):
    """Or whether it is believed would hang on how soon the machine kills: here only once the answer is there."""
    ordered, kill, ended = threading.Event(), Launched.kill, Box._ended

    def killed_and_ended(box):
        kill(box._watch.launched)
        return ended(box)

    monkeypatch.setattr(Launched, "kill", lambda launched: ordered.set())
    monkeypatch.setattr(Box, "_ended", killed_and_ended)
    program = f"import boxed, os\nfor _ in range({2**16 + 2**12} // 2**12): os.write(1, bytes(2**12))\n"
    program += "boxed.receive()\nboxed.send(b'answer')\nboxed.receive()"
    with each.open(program, limits=replace(PATIENT, output_bytes=2**10)) as box:
        assert ordered.wait(DEADLINE)
        box.send(b"go")
        assert end_of(box).end == "output"


FORKED = PROGRAMS["child with the channel"]


@pytest.mark.parametrize(
    ("before", "fork", "forge", "kept"),
    [
        ("", "boxed.fork_without_channel()", 'boxed.send(b"forged")', b"[]"),
        ("boxed.close_in_children()", "os.fork()", 'boxed.send(b"forged")', b"[]"),
        ("", "os.fork()", "pass", b"[3, 'send']"),  # what the others look for is there when nobody takes it away
    ],
)
def test_children_have_neither_channel_nor_nonce(each, before, fork, forge, kept):
    with each.open(FORKED.format(before=before, fork=fork, forge=forge)) as box:
        assert box.receive(DEADLINE) == b"genuine"
        assert box.kill().stdout == kept  # all of it, where printed() is what came so far


def test_a_box_outlives_the_thread_that_opened_it(each):
    """The kernel's signal at a parent's death counts threads."""
    opened = []
    thread = threading.Thread(target=lambda: opened.append(each.open(ECHO)))
    thread.start()
    thread.join()
    wait_for(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "the end of the thread")
    with opened[0] as box:
        box.send(b"ab")
        assert box.receive(DEADLINE) == b"ba"
