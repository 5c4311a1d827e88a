"""What `cohort up` does with processes below it: in a process of its own, because it takes all below it for its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from cohort.base.celery_app import app
from cohort.cli.embedded import up
from cohort.cli.embedded.children import RESTARTS, TAIL_BYTES, Child
from cohort.cli.embedded.home import Home
from cohort.runs.dispatch import SEAL_QUEUE
from grpo_core.protocol.queues import LAB_QUEUE, PLATFORM_QUEUE

FORKS = 100
FORKER = f"""
import subprocess, sys, time
started = []
print("forks", flush=True)
for _ in range({FORKS}):
    started.append(subprocess.Popen(["sleep", "600"]))
    time.sleep(0.002)
sys.stdin.readline()
time.sleep(0.5)
print(sum(child.poll() is not None for child in started), len(started), flush=True)
for child in started:
    child.kill()
"""
RACE = f"""
import psutil, subprocess, sys
from cohort.cli.embedded import children
children.adopt_orphans()
left = subprocess.Popen(["sleep", "600"])
words = [sys.executable, "-c", {FORKER!r}]
kept = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
kept.stdout.readline()
while len(psutil.Process(kept.pid).children()) < {FORKS}:
    children.end_orphans([kept.pid], grace=0.1)
left.wait(300)
print(kept.communicate("enough")[0].strip())
"""

SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from worker.processes.child import die_with_parent
def checkpoint(*_):
    while not Path("seen").exists():
        time.sleep(0.05)
    time.sleep(2)
    Path("checkpoint").write_text("whole")
    sys.exit()
signal.signal(signal.SIGTERM, checkpoint)
die_with_parent(os.getppid(), signal.SIGTERM)
Path("supervises").touch()
time.sleep(60)
"""
WORKER = f"""
import subprocess, sys, time
words = [sys.executable, "-c", {SUPERVISOR!r}, "worker.supervisor"]
subprocess.Popen(words, start_new_session=True)
subprocess.Popen(["sleep", "60"])
time.sleep(60)
"""
BEGIN = """
import os, sys, time
from pathlib import Path
from cohort.cli.embedded import children
from cohort.cli.embedded.home import Home
from cohort.cli.embedded.postgres import Postgres
from cohort.cli.embedded.up import LAB_WORKER, TRAINER_WORKER, Interrupts, Up
children.adopt_orphans()
here = Path.cwd()

def child(name, code):
    words, log = [sys.executable, "-c", code], here / f"{name}.log"
    return children.Child(name=name, argv=words, environment=dict(os.environ), folder=here, log=log, grace=30)

def up_of(*parts):
    return Up(Home(here), "", Postgres(here / "pg", here / "pg.log"), Interrupts(), list(parts))
"""
UP = f"""{BEGIN}
worker = child(TRAINER_WORKER, {WORKER!r})
up = up_of(worker)
worker.start()
while not Path("supervises").exists():
    time.sleep(0.05)
(first,) = children.supervisors()
worker.process.kill()
worker.process.wait()
up.watch()
print("second", worker.process.pid, "of", first, "left", children.supervisors().count(first), flush=True)
Path("seen").touch()
worker.process.kill()
worker.process.wait()
up.stop()
print("checkpoint", Path("checkpoint").read_text())
"""

LAB = f"""{BEGIN}
web, lab = child("web", "import time; time.sleep(600)"), child(LAB_WORKER, f"raise SystemExit({{sys.argv[1]}})")
up = up_of(web, lab)
web.start()
lab.start()
while lab in up.children:
    lab.process.wait()
    up.watch()
print("left", [part.name for part in up.children], web.process.poll())
up.stop()
"""


def script(code: str, folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_part_that_is_kept_starts_meanwhile_is_spared(tmp_path: Path) -> None:
    died, started = script(RACE, tmp_path).split()
    assert (died, int(started)) == ("0", FORKS)


def test_a_supervisor_whose_worker_died_is_left_to_cut_its_checkpoint(tmp_path: Path) -> None:
    """While the worker is started again, and when everything is stopped before it has ended."""
    output = script(UP, tmp_path)
    assert "left 1\n" in output
    assert output.endswith("checkpoint whole\n")


@pytest.mark.parametrize(("status", "starts"), [(3, RESTARTS), (77, 0)], ids=["fails", "node revoked"])
def test_a_lab_worker_that_cannot_run_is_left_out_and_takes_nothing_along(
    tmp_path: Path, status: int, starts: int
) -> None:
    output = script(LAB, tmp_path, str(status))
    assert output.count("Started it again") == starts
    assert "left ['web'] None" in output


def test_each_worker_takes_its_own_queue(tmp_path: Path) -> None:
    """Were records made where leases are looked at, a lost worker would be found only once a record is made, or has
    used up the process's memory."""
    home = Home(tmp_path)
    platform, seal = up._platform_worker(home, {}), up._seal_worker(home, {})
    lab, trainer = up._lab_worker(home, "http://here"), up._trainer_worker(home, "http://here")
    parts = (platform, seal, lab)
    assert [part.argv[part.argv.index("--queues") + 1] for part in parts] == [PLATFORM_QUEUE, SEAL_QUEUE, LAB_QUEUE]
    assert "--queues" not in trainer.argv
    assert ["--beat" in part.argv for part in parts] == [True, False, False]
    assert app.conf.task_default_queue == PLATFORM_QUEUE, "what beat calls goes there"
    assert lab.environment == trainer.environment, "no database and no key either"
    assert len({(part.name, part.log) for part in (*parts, trainer)}) == 4


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    child = Child(name="part", argv=[], environment={}, folder=tmp_path, log=log, grace=1)
    log.write_text("x" * 10 * TAIL_BYTES + "\nsecond but last\nlast\n")
    lines = child.tail().splitlines()
    assert lines[1:] == ["  | second but last", "  | last"]
    assert len(lines[0]) <= TAIL_BYTES
    child.log_start = log.stat().st_size - len("last\n")
    assert child.tail() == "  | last"
