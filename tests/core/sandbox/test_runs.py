"""One program in a box, to its end: what it is given, what comes back, and how its end is told."""

import json
import os
import threading
import tracemalloc
from dataclasses import replace

import pytest

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Limits, Sandbox, cgroups

from .conftest import PATIENT


def test_output_status_and_arguments(each: Sandbox) -> None:
    ran = each.run("import sys; print(sys.argv[1:]); sys.stderr.write('oh'); sys.exit(7)", arguments=["a", "b c"])
    assert (ran.end, ran.status, ran.stdout, ran.stderr) == ("exited", 7, b"['a', 'b c']\n", b"oh")
    assert not ran.stdout_cut
    assert not ran.stderr_cut


def test_input(boxes: Sandbox) -> None:
    program = "import sys\nprint(sys.stdin.read() * 2, open('/dev/stdin').read())"
    assert boxes.run(program, stdin=b"5").stdout == b"55 5\n"
    assert boxes.run("print(repr(input()))").stderr.endswith(b"EOFError: EOF when reading a line\n")


def test_input_at_either_level(each: Sandbox) -> None:
    assert each.run("print(sum(map(int, open(0))))", stdin=b"1\n2\n").stdout == b"3\n"


def test_files_can_be_read_and_imported_not_written(each: Sandbox) -> None:
    files = {"data/a.txt": b"A", "helper.py": b"def twice(n): return 2 * n"}
    program = (
        "import helper\nprint(helper.twice(4), open('data/a.txt').read())\n"
        "for name in ('data/a.txt', 'new', 'program.py'):\n"
        "    try: open(name, 'w')\n"
        "    except OSError as error: print('refused')"
    )
    assert each.run(program, files=files).stdout.splitlines() == [b"8 A", b"refused", b"refused", b"refused"]


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "program.py", "a\0b"])
def test_files_beside_the_box_are_refused(boxes: Sandbox, name: str) -> None:
    with pytest.raises(SandboxError):
        boxes.run("", files={name: b""})


def test_tracebacks_are_the_program_s_own(each: Sandbox) -> None:
    said = each.run("def f():\n    return 1 / 0\nf()").stderr.decode()
    assert said.startswith("Traceback (most recent call last):\n  File ")
    assert said.count("  File ") == 2
    assert "return 1 / 0" in said
    said = each.run("a = 1\nif a\n").stderr.decode()
    assert 'program.py", line 2\n    if a\n' in said
    assert "SyntaxError" in said


@pytest.mark.parametrize(
    ("program", "limits", "end", "status"),
    [
        ("pass", {}, "exited", 0),
        ("import os; os._exit(3)", {}, "exited", 3),
        ("raise SystemExit('no')", {}, "exited", 1),
        ("import os; os.kill(os.getpid(), 15)", {}, "signal", -15),
        ("import os; os.abort()", {}, "signal", -6),
        ("import time; time.sleep(60)", {"wall_seconds": 0.2}, "wall", None),
        ("while True: pass", {"cpu_seconds": 1, "wall_seconds": 60.0}, "cpu", None),
        ("while True: print('x' * 1000)", {"output_bytes": 1000}, "output", None),
        ("bytearray(2**31)", {}, "exited", 1),
    ],
)
def test_ends(each: Sandbox, program: str, limits: dict[str, float], end: str, status: int | None) -> None:
    ran = each.run(program, limits=replace(PATIENT, **limits))  # type: ignore[arg-type]
    assert (ran.end, ran.status) == (end, status), ran


def test_ends_that_a_control_group_tells(each: Sandbox) -> None:
    if cgroups.possible() != (True, True):
        pytest.skip("needs a control group that this user may make others in")
    many = "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        held = bytearray(60 * 2**20); os._exit(0)\n"
    many += "while True:\n    if os.wait()[1]: os._exit(1)"
    assert each.run(many, limits=replace(PATIENT, memory_bytes=100 * 2**20)).end == "memory"
    forks = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)"
    assert each.run(forks, limits=replace(PATIENT, processes=4)).end == "processes"


def test_output_is_drained_and_cut(each: Sandbox) -> None:
    program = "import os\nfor _ in range(60): os.write(1, b'a' * 1000); os.write(2, b'b' * 999)"
    ran = each.run(program, limits=replace(PATIENT, output_bytes=1000))
    assert (ran.end, ran.status) == ("exited", 0)
    assert (ran.stdout, ran.stdout_cut) == (b"a" * 1000, True)
    assert (ran.stderr, ran.stderr_cut) == (b"b" * 999 + b"b", True)


def test_a_flood_takes_no_memory_here(boxes: Sandbox) -> None:
    """Half a GiB is offered on each stream; the box is stopped after 64 times what is kept."""
    program = "import os\nfor _ in range(2**13): os.write(1, bytes(2**16)); os.write(2, bytes(2**16))"
    boxes.run("")
    tracemalloc.start()
    for _ in range(3):
        ran = boxes.run(program, limits=replace(PATIENT, output_bytes=2**16))
        assert ran.end == "output"
        assert len(ran.stdout) <= 2**16
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_descriptors_are_not_used_up(each: Sandbox) -> None:
    each.run("")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        each.run("print(1)", files={"a": b""}, stdin=b"x")
        each.open("import time; time.sleep(60)").close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_packages_are_there_only_when_asked_for(each: Sandbox) -> None:
    program = "import mpmath, sys; print(mpmath.mpf(2)); print([n for n in sys.modules if n == 'sympy'])"
    assert b"No module named 'mpmath'" in each.run(program).stderr
    assert each.run(program, packages=["mpmath"]).stdout == b"2.0\n[]\n"
    needs_other = "import sympy; print(sympy.Integer(6) / 4)"
    wide = Limits(memory_bytes=2**30, wall_seconds=60.0)
    assert each.run(needs_other, packages=["sympy"], limits=wide).stdout == b"3/2\n"
    assert b"No module named 'pydantic'" in each.run("import pydantic", packages=["mpmath"]).stderr


def test_packages_that_are_not_here_are_named(boxes: Sandbox) -> None:
    with pytest.raises(SandboxError, match="packages: no-such-thing is not installed here"):
        boxes.run("", packages=["no-such-thing"])
    with pytest.raises(SandboxError, match="cohort-grpo has no files of its own here"):
        boxes.run("", packages=["cohort-grpo"])


def test_ordinary_python_works(each: Sandbox) -> None:
    program = """
import asyncio, concurrent.futures, decimal, hashlib, json, multiprocessing, re, sqlite3
import ssl, subprocess, sys, tempfile, zlib
async def five(): return 5
with tempfile.TemporaryFile() as file: file.write(b"x")
with concurrent.futures.ThreadPoolExecutor(2) as pool: threads = list(pool.map(abs, [-1, 2]))
ours, theirs = multiprocessing.get_context("fork").Pipe()
child = multiprocessing.get_context("fork").Process(target=theirs.send, args=(3,)); child.start(); child.join()
other = subprocess.run([sys.executable, "-I", "-S", "-c", "print(4)"], capture_output=True, text=True)
row = sqlite3.connect(":memory:").execute("select 1").fetchone()
print(json.dumps([asyncio.run(five()), threads, ours.recv(), other.stdout, row]))
"""
    ran = each.run(program, limits=Limits(wall_seconds=60.0))
    assert json.loads(ran.stdout or b"null") == [5, [1, 2], 3, "4\n", [1]], ran


def test_multiprocessing_s_queues_work_in_boxes_of_bubblewrap(boxes: Sandbox) -> None:
    program = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, 2]))"
    assert boxes.run(program, limits=Limits(wall_seconds=60.0)).stdout == b"[1, 2]\n"


def test_several_threads_run_at_once(each: Sandbox) -> None:
    said: list[bytes] = []

    def some(first: int) -> None:
        said.extend(each.run(f"print({n})").stdout for n in range(first, first + 5))

    threads = [threading.Thread(target=some, args=(first,)) for first in (0, 5, 10, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, said)) == list(range(20))


def test_hashes_are_the_same_in_every_box(each: Sandbox) -> None:
    """0 gives the same order every time, as PYTHONHASHSEED's documentation says; a seed of chance would not."""
    program = "import sys; print(sys.flags.hash_randomization, list({str(n) for n in range(50)}))"
    said = {each.run(program).stdout for _ in range(3)}
    assert len(said) == 1
    assert said.pop().startswith(b"0 [")


def test_a_box_may_live_long(each: Sandbox) -> None:
    limits = Limits(wall_seconds=float("inf"), cpu_seconds=10**9)
    with each.open("import boxed\nboxed.send(b'here')\nboxed.receive()", limits=limits) as box:
        assert box.receive(30) == b"here"


def test_limits_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Limits.processes is 0; it must be at least 1"):
        Limits(processes=0)
    with pytest.raises(ValueError, match="wall_seconds"):
        Limits(wall_seconds=float("nan"))
