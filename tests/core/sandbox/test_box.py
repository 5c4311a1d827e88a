"""A program held open: frames both ways, and that nobody but it can speak for it."""

import threading
import time
from dataclasses import replace

import pytest

from grpo_core.sandbox import BoxEnded, BoxTimeout, Limits, Sandbox
from grpo_core.sandbox.box import Launched

ECHO = "import boxed\nwhile True: boxed.send(boxed.receive()[::-1])"
LIMITS = Limits(wall_seconds=60.0)


def test_frames_both_ways(each: Sandbox) -> None:
    with each.open(ECHO, limits=LIMITS) as box:
        for message in (b"", b"abc", bytes(range(256)) * 4000):
            box.send(message)
            assert box.receive(30) == message[::-1]


def test_the_channel_s_number_comes_before_the_arguments(each: Sandbox) -> None:
    program = "import boxed, os, sys\nos.fstat(int(sys.argv[1]))\nboxed.send(repr(sys.argv[2:]).encode())"
    with each.open(program, arguments=["x", "y"], files={"a": b"1"}, limits=LIMITS) as box:
        assert box.receive(30) == b"['x', 'y']"


def test_a_box_that_is_silent_lives_on(each: Sandbox) -> None:
    with each.open(ECHO, limits=LIMITS) as box:
        with pytest.raises(BoxTimeout):
            box.receive(0.05)
        box.send(b"ab")
        assert box.receive(30) == b"ba"


def test_the_end_is_told_with_what_was_printed(each: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.sandbox.box._GRACE", 30.0)  # a busy machine tells the end later than the channel's
    program = "import boxed, sys\nprint('hello', flush=True)\nboxed.receive()\nsys.exit(3)"
    with each.open(program, limits=LIMITS) as box:
        box.send(b"go")
        with pytest.raises(BoxEnded) as caught:
            box.receive(30)
        assert (caught.value.ran.end, caught.value.ran.status, caught.value.ran.stdout) == ("exited", 3, b"hello\n")
        assert box.printed()[0] == b"hello\n"
        with pytest.raises(BoxEnded):
            box.receive(30)
        with pytest.raises(BoxEnded):
            box.send(b"x" * 10**6)
        assert box.kill() is caught.value.ran


def test_the_wall_clock_holds_while_nobody_asks(each: Sandbox) -> None:
    with each.open("import time; time.sleep(600)", limits=Limits(wall_seconds=0.2)) as box:
        box._thread.join()
        with pytest.raises(BoxEnded) as caught:
            box.receive(30)
        assert caught.value.ran.end == "wall"


def test_kill_tells_a_signal(each: Sandbox) -> None:
    box = each.open(ECHO, limits=Limits(wall_seconds=float("inf")))
    ran = box.kill()
    assert (ran.end, ran.status) == ("signal", -9)


@pytest.mark.parametrize(
    "forged",
    [
        "os.write(fd, bytes(32) + (1).to_bytes(4, 'big') + b'1')",
        "os.write(fd, b'1')",
        "os.write(fd, (1).to_bytes(4, 'big') + b'1')",
        "import boxed; boxed.send(b'x'); os.write(fd, bytes(40))",
        "import boxed; boxed.send(bytes(2**24 + 1))",
    ],
)
def test_frames_that_are_not_its_own_end_a_box(each: Sandbox, forged: str) -> None:
    program = f"import os, sys, time\nfd = int(sys.argv[1])\n{forged}\ntime.sleep(60)"
    with each.open(program, limits=LIMITS) as box:
        if "send(b'x')" in forged:
            assert box.receive(30) == b"x"
        with pytest.raises(BoxEnded) as caught:
            box.receive(30)
        assert caught.value.ran.end == "output"


@pytest.mark.parametrize("much", [2**24, 2**16 + 2**12], ids=["more than the pipe holds", "little more than allowed"])
def test_what_printed_too_much_cannot_answer_before_it_is_killed(
    each: Sandbox, monkeypatch: pytest.MonkeyPatch, much: int
) -> None:
    """Or whether it is believed would hang on how soon the machine kills."""
    at_once = Launched.kill
    monkeypatch.setattr(Launched, "kill", lambda launched: threading.Timer(2.0, at_once, [launched]).start())
    program = f"""
import boxed, os, time
for _ in range({much} // 2**12): os.write(1, bytes(2**12))
time.sleep(0.5)
boxed.send(b"answer")
boxed.receive()
"""
    with each.open(program, limits=replace(LIMITS, output_bytes=2**10)) as box:
        with pytest.raises(BoxEnded) as caught:
            box.receive(60)
        assert caught.value.ran.end == "output"


FORKED = """
import boxed, ctypes, os, sys
{before}
pid = {fork}
if pid == 0:
    found = []
    for fd in range(3, 1025):
        try: os.fstat(fd); found.append(fd)
        except OSError: pass
    found += [name for name in ("receive", "send") if any(map(any_of, getattr(boxed, name).__closure__))]
    try:
        boxed.send(b"forged")
    except OSError: pass
    os.write(1, repr(found).encode())
    os._exit(0)
os.waitpid(pid, 0)
boxed.send(b"genuine")
boxed.receive()
"""
ANY_OF = """
def any_of(cell):
    value = cell.cell_contents
    return isinstance(value, bytearray) and any(value)
"""


@pytest.mark.parametrize(
    ("before", "fork"), [("", "boxed.fork_without_channel()"), ("boxed.close_in_children()", "os.fork()")]
)
def test_children_have_neither_channel_nor_nonce(each: Sandbox, before: str, fork: str) -> None:
    with each.open(FORKED.format(before=ANY_OF + before, fork=fork), limits=LIMITS) as box:
        assert box.receive(30) == b"genuine"
        assert box.kill().stdout == b"[]"  # all of it, where printed() is what came so far


def test_a_child_that_was_told_nothing_would_have_both(each: Sandbox) -> None:
    """What the test above looks for is there when nobody takes it away."""
    program = FORKED.format(before=ANY_OF, fork="os.fork()").replace('boxed.send(b"forged")', "raise OSError")
    with each.open(program, limits=LIMITS) as box:
        assert box.receive(30) == b"genuine"
        assert box.kill().stdout == b"[3, 'send']"


def test_the_channel_s_process_cannot_be_looked_into(each: Sandbox) -> None:
    program = "import boxed, ctypes; boxed.send(str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)).encode()); boxed.receive()"
    with each.open(program, limits=LIMITS) as box:
        assert box.receive(30) == b"0"


def test_a_box_outlives_the_thread_that_opened_it(each: Sandbox) -> None:
    """The kernel's signal at a parent's death counts threads."""
    opened = []
    thread = threading.Thread(target=lambda: opened.append(each.open(ECHO, limits=LIMITS)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with opened[0] as box:
        box.send(b"ab")
        assert box.receive(30) == b"ba"


def test_a_box_that_does_not_read_ends_with_its_time(each: Sandbox) -> None:
    with each.open("import time; time.sleep(600)", limits=Limits(wall_seconds=0.5)) as box:
        with pytest.raises(BoxEnded) as caught:
            box.send(bytes(10**8))
        assert caught.value.ran.end == "wall"
