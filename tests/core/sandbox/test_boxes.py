"""One program in a box, to its end: what it is given, what comes back, and how its end is told. A program held open:
frames both ways, and that nobody but it can speak for it."""

import json
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Box, BoxEnded, BoxTimeout, Limits
from grpo_core.sandbox.box import Launched
from tests.processes import DEADLINE, wait_for
from tests.tables import cases

from .conftest import PATIENT, PROGRAMS, needs_groups

MANY = int(os.environ.get("COHORT_TEST_SANDBOX_RUNS", "10000"))
"""How many harmless programs the slow form runs."""


def test_output_status_and_arguments(each):
    ran = each.run("import sys; print(sys.argv[1:]); sys.stderr.write('oh'); sys.exit(7)", arguments=["a", "b c"])
    assert (ran.end, ran.status, ran.stdout, ran.stderr) == ("exited", 7, b"['a', 'b c']\n", b"oh")
    assert not ran.stdout_cut
    assert not ran.stderr_cut


def test_input(each, boxes):
    assert each.run("print(sum(map(int, open(0))))", stdin=b"1\n2\n").stdout == b"3\n"
    program = "import sys\nprint(sys.stdin.read() * 2, open('/dev/stdin').read())"
    assert boxes.run(program, stdin=b"5").stdout == b"55 5\n"
    assert b"EOFError" in boxes.run("print(repr(input()))").stderr


def test_files_can_be_read_and_imported_not_written(each):
    files = {"data/a.txt": b"A", "helper.py": b"def twice(n): return 2 * n"}
    printed = each.run(PROGRAMS["reads and writes"], files=files).stdout
    assert printed.splitlines() == [b"8 A", b"refused", b"refused", b"refused"]


@pytest.mark.parametrize(
    ("program", "files", "line"),
    [("def f():\n    return 1 / 0\nf()", 2, "return 1 / 0"), ("a = 1\nif a\n", 1, 'program.py", line 2')],
)
def test_tracebacks_hold_the_program_s_own_lines_alone(each, program, files, line):
    text = each.run(program).stderr.decode()
    assert text.count("  File ") == files
    assert line in text


@pytest.mark.parametrize(
    ("program", "limits", "end", "status"), cases("sandbox/ends", "program", "limits", "end", "status")
)
def test_ends(each, program, limits, end, status):
    ran = each.run(program, limits=replace(PATIENT, **limits))
    assert (ran.end, ran.status) == (end, status), ran


def test_ends_that_a_control_group_tells(each):
    needs_groups()
    many = "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        held = bytearray(60 * 2**20); os._exit(0)\n"
    many += "while True:\n    if os.wait()[1]: os._exit(1)"
    assert each.run(many, limits=replace(PATIENT, memory_bytes=100 * 2**20)).end == "memory"
    forks = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)"
    assert each.run(forks, limits=replace(PATIENT, processes=4)).end == "processes"


def test_output_is_drained_and_cut(each):
    program = "import os\nfor _ in range(60): os.write(1, b'a' * 1000); os.write(2, b'b' * 999)"
    ran = each.run(program, limits=replace(PATIENT, output_bytes=1000))
    assert (ran.end, ran.status) == ("exited", 0)
    assert (ran.stdout, ran.stdout_cut) == (b"a" * 1000, True)
    assert (ran.stderr, ran.stderr_cut) == (b"b" * 1000, True)


def test_a_flood_takes_no_memory_here(boxes):
    """Half a GiB is offered on each stream; the box is stopped after 64 times what is kept."""
    program = "import os\nfor _ in range(2**13): os.write(1, bytes(2**16)); os.write(2, bytes(2**16))"
    boxes.run("")
    tracemalloc.start()
    ran = boxes.run(program, limits=replace(PATIENT, output_bytes=2**16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (ran.end, len(ran.stdout) <= 2**16, peak < 2**20) == ("output", True, True)


def test_descriptors_are_not_used_up(each):
    each.run("")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        each.run("print(1)", files={"a": b""}, stdin=b"x")
        each.open("import time; time.sleep(60)").close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_packages_are_there_only_when_asked_for(each):
    program = "import mpmath, sys; print(mpmath.mpf(2)); print([n for n in sys.modules if n == 'sympy'])"
    assert b"No module named 'mpmath'" in each.run(program).stderr
    assert each.run(program, packages=["mpmath"]).stdout == b"2.0\n[]\n"
    needs_other = "import sympy; print(sympy.Integer(6) / 4)"
    wide = replace(PATIENT, memory_bytes=2**30, cpu_seconds=100)
    assert each.run(needs_other, packages=["sympy"], limits=wide).stdout == b"3/2\n"
    assert b"No module named 'pydantic'" in each.run("import pydantic", packages=["mpmath"]).stderr


@pytest.mark.parametrize(
    "given",
    [
        *({"files": {name: b""}} for name in ("../x", "/x", "a/../../x", "", "program.py", "a\0b")),
        *({"packages": [name]} for name in ("no-such-thing", "cohort-grpo")),
    ],
    ids=str,
)
def test_files_outside_the_box_and_packages_without_files_are_refused(boxes, given):
    with pytest.raises(SandboxError, match=given.get("packages", [None])[0]):
        boxes.run("", **given)


def test_ordinary_python_works_in_several_threads_at_once(each):
    ran = each.run(PROGRAMS["ordinary"])
    assert json.loads(ran.stdout or b"null") == [5, [1, 2], 3, "4\n", [1]], ran
    with ThreadPoolExecutor(4) as pool:
        printed = [ran.stdout for ran in pool.map(lambda n: each.run(f"print({n})"), range(20))]
    assert printed == [b"%d\n" % n for n in range(20)]


def test_multiprocessing_s_queues_work_in_boxes_of_bubblewrap(boxes):
    program = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, 2]))"
    assert boxes.run(program).stdout == b"[1, 2]\n"


def test_hashes_are_the_same_in_every_box(each):
    """0 gives the same order every time, as PYTHONHASHSEED's documentation says; a seed of chance would not."""
    program = "import sys; print(sys.flags.hash_randomization, list({str(n) for n in range(50)}))"
    (printed,) = {each.run(program).stdout for _ in range(3)}
    assert printed.startswith(b"0 [")


@pytest.mark.parametrize("limit", [{"processes": 0}, {"wall_seconds": float("nan")}])
def test_limits_that_mean_nothing_are_refused(limit):
    with pytest.raises(ValueError, match=next(iter(limit))):
        Limits(**limit)


@pytest.mark.parametrize("runs", [100, pytest.param(MANY, marks=pytest.mark.slow, id="many")])
def test_no_innocent_program_meets_trouble_of_ours(boxes, runs):
    """For such trouble is an innocent sample without a score."""
    programs, limits = cases("sandbox/innocent", "program", "adds"), replace(PATIENT, processes=8)

    def trouble(n):
        program, adds = programs[n % len(programs)].values
        try:
            ran = boxes.run(program, arguments=[str(n)], stdin=b"%d\n" % n, limits=limits)
        except SandboxError as error:
            return f"{n}: {error}"
        right = (ran.end, ran.status, ran.stdout) == ("exited", 0, b"%d\n" % (n + adds))
        return None if right else f"{n}: {ran}"

    with ThreadPoolExecutor(4) as pool:
        assert [text for text in pool.map(trouble, range(runs)) if text] == []


# ---------------------------------------------------------------------- a program held open: frames both ways


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
