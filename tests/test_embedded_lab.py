"""The lab's worker beside the others of `cohort up`."""

import subprocess
import sys
from pathlib import Path

from cohort.embedded import up
from cohort.embedded.children import RESTARTS
from cohort.embedded.home import Home
from grpo_core.broker import LAB_QUEUE

DIES = """
import os, sys
from pathlib import Path
from cohort.embedded import spawn
from cohort.embedded.children import Child
from cohort.embedded.home import Home
from cohort.embedded.postgres import Postgres
from cohort.embedded.up import LAB_WORKER, Interrupts, Up
spawn.adopt_orphans()
here = Path.cwd()

def child(name, code):
    words = [sys.executable, "-c", code]
    return Child(name=name, words=words, environment=dict(os.environ), folder=here, log=here / f"{name}.log", grace=5)

web, lab = child("web", "import time; time.sleep(600)"), child(LAB_WORKER, "raise SystemExit(%d)")
up = Up(Home(here), "", Postgres(here / "pg", here / "pg.log"), print, Interrupts(), [web, lab])
web.start()
lab.start()
for _ in range(%d):
    lab.process.wait()
    up.watch()
    if lab not in up.children:
        break
print("left", [one.name for one in up.children], web.process.poll())
up.stop()
"""


def said(tmp_path: Path, status: int, rounds: int) -> str:
    words = [sys.executable, "-c", DIES % (status, rounds)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_takes_the_labs_jobs_alone_and_nobody_waits_for_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lab, trainer = up._lab_worker(home, "http://here"), up._trainer_worker(home, "http://here")
    assert lab.words[lab.words.index("--queues") + 1] == LAB_QUEUE
    assert "--queues" not in trainer.words
    assert lab.environment == trainer.environment, "no database and no key either"
    assert lab.log != trainer.log


def test_one_that_dies_again_and_again_takes_nothing_along(tmp_path: Path) -> None:
    told = said(tmp_path, 3, RESTARTS + 5)
    assert told.count("Started it again") == RESTARTS
    assert "It died too often. No reward is tried or probed here" in told
    assert "left ['web'] None" in told


def test_one_whose_node_is_revoked_is_not_started_again(tmp_path: Path) -> None:
    told = said(tmp_path, 77, 3)
    assert "No reward is tried or probed here until Cohort is started anew, which makes another node." in told
    assert "Started it again" not in told
    assert "left ['web'] None" in told
