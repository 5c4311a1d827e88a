"""Thousands of harmless programs: none may meet trouble of ours, for such trouble is an innocent sample without a
score. COHORT_TEST_SANDBOX_RUNS says how many (10,000)."""

import os
import threading
import time

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Limits, Sandbox

RUNS = int(os.environ.get("COHORT_TEST_SANDBOX_RUNS", "10000"))
THREADS = 4
# A program, and what it prints for n. Forks and threads among them: limits on processes are what failed innocents.
PROGRAMS = (
    ("import sys\nn = int(sys.argv[1])\nprint(n * n)", lambda n: n * n),
    ("print(int(input()) + 1)", lambda n: n + 1),
    ("import os, sys\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint(sys.argv[1])", lambda n: n),
    (
        "import sys, threading\nout = []\nt = [threading.Thread(target=out.append, args=(1,)) for _ in range(4)]\n"
        "[x.start() for x in t]\n[x.join() for x in t]\nprint(len(out) + int(sys.argv[1]))",
        lambda n: n + 4,
    ),
    ("import sys\nopen('/tmp/x', 'w').write(sys.argv[1])\nprint(open('/tmp/x').read())", lambda n: n),
)


def test_no_innocent_program_meets_trouble(boxes: Sandbox) -> None:
    trouble: list[str] = []
    wrong: list[str] = []
    done = 0
    numbers = iter(range(RUNS))
    lock = threading.Lock()

    def work() -> None:
        nonlocal done
        while True:
            with lock:
                n = next(numbers, None)
            if n is None:
                return
            program, answer = PROGRAMS[n % len(PROGRAMS)]
            try:
                ran = boxes.run(
                    program, arguments=[str(n)], stdin=b"%d\n" % n, limits=Limits(wall_seconds=120.0, processes=8)
                )
            except SandboxError as error:
                trouble.append(f"{n}: {error}")
                continue
            if (ran.end, ran.status, ran.stdout) != ("exited", 0, b"%d\n" % answer(n)):
                wrong.append(f"{n}: {ran}")
            with lock:
                done += 1

    begun = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    print(
        f"{RUNS} programs in {THREADS} threads: {done} ran, {len(trouble)} met trouble of ours, {len(wrong)} answered "
        f"wrongly; {RUNS / seconds:.0f} a second, load {os.getloadavg()[0]:.1f}"
    )
    assert trouble == []
    assert wrong == []
    assert done == RUNS
