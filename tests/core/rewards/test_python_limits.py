"""A person's own verifier that takes too much time, memory, output or processes: it is ended and told by class, and
nothing that it does reaches another sample's score or the machine."""

from pathlib import Path

import pytest

from tests.core.rewards import patience
from tests.core.rewards.own_verifier import LOOPS, Make, one_bad, told
from tests.processes import below


def test_an_endless_loop_is_killed_at_its_deadline_and_the_next_sample_is_scored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience.boxed(monkeypatch, lambda completion: completion == "loop")
    runner = make(LOOPS, limits={"workers": 2, "deadline_seconds": 3})
    found = told(runner, "a", "loop", "b", "loop", "c")
    assert [one.error_class for one in found] == [None, "timeout", None, "timeout", None]
    assert found[1].error == "Timeout: one sample took over 3 s and was killed"
    assert found[1].seconds >= 3
    assert [one.value for one in found] == [1, None, 1, None, 1]


def test_the_shorter_of_both_deadlines_counts(make: Make) -> None:
    (found,) = told(make(LOOPS, call_seconds=0.5, limits={"deadline_seconds": 300}), "loop")
    assert found.error == "Timeout: one sample took over 0.5 s and was killed"
    (found,) = told(make(LOOPS, call_seconds=300, limits={"deadline_seconds": 0.5}), "loop")
    assert found.error == "Timeout: one sample took over 0.5 s and was killed"


@pytest.mark.parametrize(
    "bad",
    [
        "bytearray(10 * 2**30)",
        "kept = [bytes(2**20) for _ in range(10 * 2**10)]",
        "return len('x' * (10 * 2**30))",
        "'a' * (2**30)",
        "[0] * (10 * 2**30)",
    ],
)
def test_ten_gigabytes_of_memory(make: Make, bad: str) -> None:
    assert one_bad(make, bad).error_class == "memory"


@pytest.mark.parametrize(
    "bad",
    [
        "for _ in range(1024): print('x' * 2**20)",
        "for _ in range(1024): __import__('os').write(1, b'x' * 2**20)",
        "for _ in range(1024): __import__('os').write(2, b'x' * 2**20)",
        "__import__('sys').__stdout__.write('x' * 2**25); __import__('sys').__stdout__.flush()",
        "exec('try:\\n  while True: print(1e9)\\nexcept BaseException: pass')",
    ],
)
def test_a_gigabyte_of_output(make: Make, bad: str) -> None:
    assert one_bad(make, bad).error_class == "output"


@pytest.mark.parametrize(
    "bad",
    [
        "while True: __import__('os').fork()",
        "exec('import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass')",
        "while True: __import__('threading').Thread(target=__import__('time').sleep, args=(100,)).start()",
    ],
)
def test_a_fork_bomb_is_harmless_and_told(make: Make, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    patience.boxed(monkeypatch, lambda completion: completion == "bad")
    before = len(below())
    found = one_bad(make, bad, call_seconds=5)
    if found.error_class != "timeout":  # one that hides what it is refused loops until its time is over
        assert found.error_class == "verifier"
        assert (found.error or "").endswith("(the sandbox lets a verifier have 16 processes and threads)")
    assert len(below()) < before + 40


@pytest.mark.parametrize(
    ("bad", "kind", "error"),
    [
        ("__import__('os')._exit(0)", "verifier", "ended its own process with status 0"),
        ("__import__('os')._exit(3)", "verifier", "ended its own process with status 3"),
        ("__import__('os').kill(__import__('os').getpid(), 11)", "verifier", "ended its own process by signal 11"),
        ("__import__('ctypes').string_at(0)", "verifier", "ended its own process by signal 11"),
    ],
)
def test_a_verifier_that_ends_its_process(make: Make, bad: str, kind: str, error: str) -> None:
    found = one_bad(make, bad)
    assert (found.error_class, (found.error or "").splitlines()[0]) == (kind, error)


@pytest.mark.parametrize(
    "bad",
    [
        "open('/etc/passwd').read()",
        "open('/box/x', 'w')",
        "__import__('socket').create_connection(('127.0.0.1', 80), 1)",
        "__import__('subprocess').run(['/bin/ls'], check=True)",
        "import numpy",
        "import grpo_core",
    ],
)
def test_what_the_box_does_not_have(make: Make, bad: str, tmp_path: Path) -> None:
    assert one_bad(make, f"exec({bad!r})").error_class == "verifier"


def test_what_goes_on_after_an_answer_is_ended_with_its_box(make: Make) -> None:
    source = """
import time
os, threading = __import__("os"), __import__("threading")
box = os.urandom(8).hex()
def verify(sample):
    if sample.completion == "thread":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if sample.completion == "child" and os.fork() == 0:
        time.sleep(1000)
    return {"value": 1, "detail": box}
"""
    found = told(make(source, limits={"workers": 1}), "plain", "thread", "plain", "child", "plain")
    boxes = [one.detail for one in found]
    assert boxes[0] == boxes[1] != boxes[2]
    assert boxes[2] == boxes[3] != boxes[4]


def test_memory_that_earlier_samples_took_is_not_held_against_a_later_one(make: Make) -> None:
    """Each sample keeps 100 MiB, the box may have 512: every so often a fresh one is needed, and no sample suffers."""
    source = "kept = []\ndef verify(sample):\n    kept.append(bytearray(100 * 2**20))\n    return 1"
    found = told(make(source, limits={"workers": 1}), *"abcdefghijkl")
    assert [one.error for one in found] == [None] * 12
    assert sum(one.tries > 1 for one in found) >= 2


def test_a_chatty_verifier_is_not_ended_for_what_it_wrote_over_many_samples(make: Make) -> None:
    source = "os = __import__('os')\ndef verify(sample):\n    os.write(1, b'x' * 50_000)\n    return 1"
    found = told(make(source, limits={"workers": 1}), *["a"] * 120)  # 6 MB, and a box is killed after 4
    assert [one.error for one in found] == [None] * 120
