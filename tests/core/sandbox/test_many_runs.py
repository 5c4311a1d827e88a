"""Many harmless programs: none may meet trouble of ours, for such trouble is an innocent sample without a score.
COHORT_TEST_SANDBOX_RUNS says how many the slow form runs (10,000)."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from grpo_core.errors import SandboxError

from .conftest import PATIENT

RUNS = int(os.environ.get("COHORT_TEST_SANDBOX_RUNS", "10000"))
LIMITS = replace(PATIENT, processes=8)
# A program, and what it adds to n. Forks and threads among them: limits on processes are what failed innocents.
PROGRAMS = (
    ("import sys\nprint(int(sys.argv[1]) + 7)", 7),
    ("print(int(input()) + 1)", 1),
    ("import os, sys\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint(sys.argv[1])", 0),
    (
        "import sys, threading\nout = []\nt = [threading.Thread(target=out.append, args=(1,)) for _ in range(4)]\n"
        "[x.start() for x in t]\n[x.join() for x in t]\nprint(len(out) + int(sys.argv[1]))",
        4,
    ),
    ("import sys\nopen('/tmp/x', 'w').write(sys.argv[1])\nprint(open('/tmp/x').read())", 0),
)


@pytest.mark.parametrize("runs", [100, pytest.param(RUNS, marks=pytest.mark.slow, id="many")])
def test_no_innocent_program_meets_trouble(boxes, runs):
    def trouble(n):
        program, added = PROGRAMS[n % len(PROGRAMS)]
        try:
            ran = boxes.run(program, arguments=[str(n)], stdin=b"%d\n" % n, limits=LIMITS)
        except SandboxError as error:
            return f"{n}: {error}"
        right = (ran.end, ran.status, ran.stdout) == ("exited", 0, b"%d\n" % (n + added))
        return None if right else f"{n}: {ran}"

    with ThreadPoolExecutor(4) as pool:
        assert [text for text in pool.map(trouble, range(runs)) if text] == []
