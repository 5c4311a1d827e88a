"""A worker with all that is below it while it trains, to be killed in part: what a test of leftovers begins with."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from grpo_core.wire import ClaimReply
from tests.processes import clean_environment, wait_for
from worker.cgroup import Cgroup
from worker.keeper import process
from worker.orphans import RECORD, ProcessRecord

OURS = "ours"
"""The node whose attempts these are."""

# A trainer that leaves a child in a session of its own, forked twice.
TRAINER = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("orphan", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""

# A supervisor under a worker of its own, as Celery's main process is.
WORKER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(600)"
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from grpo_core.wire import ClaimReply
from worker import orphans
from worker.cgroup import Cgroup
from worker.process import Child, become_reaper
become_reaper()
folder = Path(sys.argv[2])
held = orphans.Held(folder, ClaimReply.model_validate_json(sys.argv[1]), os.environ["TEST_NODE"])
env = {**os.environ, orphans.MARK: held.record.mark}
group = Cgroup.make("cohort-" + held.record.mark) if "group" in sys.argv else None
child = Child([sys.executable, "-c", sys.argv[3]], cwd=folder, env=env, log=folder / "log.txt", group=group)
held.started(child)
(folder / "keeper").write_text(str(child.keeper_pid))
time.sleep(600)
"""


def claimed(attempt_id: int = 1, run_id: int = 1, fence: int = 1) -> ClaimReply:
    return ClaimReply(
        attempt_id=attempt_id,
        fence=fence,
        token="t",
        run_id=run_id,
        run_name="a run",
        config={},
        files=[],
        heartbeat_seconds=1,
        lease_seconds=60,
    )


class Life:
    """A worker with a supervisor, a keeper, a trainer and what that forked."""

    def __init__(self, folder: Path, claim: ClaimReply, *also: str, node: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        root = str(Path(__file__).parents[2])
        words = [sys.executable, "-c", WORKER, SUPERVISOR, claim.model_dump_json(), str(folder), TRAINER, *also]
        self.worker = subprocess.Popen(words, env=clean_environment() | {"PYTHONPATH": root, "TEST_NODE": node})
        wait_for(lambda: (folder / "orphan").exists() and (folder / "orphan").read_text(), "the trainer has forked")
        wait_for(lambda: (folder / "keeper").exists() and (folder / "keeper").read_text(), "the record is written")
        self.record = ProcessRecord.model_validate_json((folder / RECORD).read_bytes())
        assert self.record.pid is not None
        self.trainer = self.record.pid
        self.orphan = int((folder / "orphan").read_text())
        self.keeper = int((folder / "keeper").read_text())

    def kill(self, *, worker: bool = True, keeper: bool = True) -> None:
        """The supervisor, and more of those that would have ended the rest."""
        killed = [self.record.supervisor_pid]
        killed = ([self.worker.pid] if worker else []) + killed + ([self.keeper] if keeper else [])
        for pid in killed:
            os.kill(pid, signal.SIGSTOP)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        dead = [*killed, self.trainer]  # the trainer dies with its keeper
        wait_for(lambda: not any(lives(pid) for pid in dead), lambda: f"still alive: {dead}")

    def end(self) -> None:
        for pid in (self.worker.pid, self.record.supervisor_pid, self.keeper, self.trainer, self.orphan):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        self.worker.wait()
        if self.record.cgroup is not None:
            Cgroup(Path(self.record.cgroup)).remove()


def lives(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.lives
